"""Every committed result: which command makes it, which code it is about, and whether that code has
changed since.
"""
