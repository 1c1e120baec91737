"""How fast metacal is, in reads of the table and beside its peers."""
