"""Everything that measures metacal: `python -m benchmarks` from the root of the repository; results
in results/.
"""
