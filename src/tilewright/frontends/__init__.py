"""Front ends: models of other frameworks to modules at the graph level."""
