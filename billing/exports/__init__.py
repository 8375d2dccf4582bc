"""What leaves for other systems: charges as FOCUS data, usage and receipts as records.

Everything is made row by row from iterators, so that an export takes as much memory for a million
requests as for a thousand.
"""
