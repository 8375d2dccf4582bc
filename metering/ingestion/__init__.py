"""Usage that engines which are not ours report: checked, counted once, and kept until it is rated.

`envelopes` reads CloudEvents, `intake` stores a batch and answers for each event, `partitions`
divides PostgreSQL's detail by month, `outside` turns an event into a request that has ended.
"""
