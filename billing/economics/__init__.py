"""What serving costs the operator: estimates to decide by, apart from the books.

Nothing here is charged or booked. Every figure is measured on this installation, computed from
what the operator states, or absent.
"""
