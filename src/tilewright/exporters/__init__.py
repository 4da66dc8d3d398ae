"""Writers of graph-level modules in the forms of other tools."""
