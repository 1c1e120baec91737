"""Every calibration map as a torch module, one file per method, named like its map; `maps.methods` has the rows."""
