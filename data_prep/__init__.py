"""Raw traffic records to a cube: an `xarray.Dataset` with dimensions `(time, cell)`.

One module per data set (`milan`, `trentino`, `metr_la`, `fedda_h5`, `tables`); `cube` says what a cube
is, reads and writes it. Nothing here imports torch.
"""
