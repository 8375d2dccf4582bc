"""Double entry: append-only transfers between accounts, and the holds that reserve credit.

Owns who has what, and why. Knows no prices: amounts arrive rated. Every transfer debits one
account and credits another by the same amount, so that any set of them sums to zero. Ids derive
from causes, so that booking the same cause twice books it once.
"""
