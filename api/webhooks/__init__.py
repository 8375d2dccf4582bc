"""Webhooks out, as Standard Webhooks has them: endpoints, signed deliveries, retries and replay.

`endpoints` and `deliveries` keep what is in the database, `addresses` guards where a call may go,
`sending` makes the call.
"""
