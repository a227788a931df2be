"""What commands print: tables, plans, documents and errors."""
