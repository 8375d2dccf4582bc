"""Invoices: what a period comes to, in whole minor units, and what became of it.

Owns periods' lines, numbers, states and documents. Knows no prices of requests: those arrive as
rated lines; and no payment provider: `billing.payments` pushes what is final and reports what was
paid. A final invoice is never edited: what is learned later is a line of the next one, an invoice
of corrections, or a credit note.
"""
