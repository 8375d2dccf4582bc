"""Payments through Stripe: our invoices pushed out, what became of them taken in.

Our books are the authority; Stripe collects. What goes out is queued in the transaction that
decides it (`outbox`), what comes in is stored with its effect in one transaction (`webhooks`).
Only `stripe_provider` knows the SDK.
"""
