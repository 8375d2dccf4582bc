"""How fast the books are kept, beside what the machine or the database can do at all."""
