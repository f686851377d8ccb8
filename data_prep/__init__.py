"""Raw traffic records to a cube: an `xarray.Dataset` with dimensions `(time, cell)`.

- `cube` says what a cube is, reads and writes it; `slabs` writes one that is larger than memory.
- A data set is one module, found by `registry`: `milan`, `trentino`, `metr_la`, `fedda_h5`, and
  `table` for a user's own. What is particular to a publisher's files is a package: `telecom_italia`
  (Milan, Trentino), `dcrnn` (METR-LA), `tabular` (tables).
- `download` brings official files; `simulate` writes those of an invented `city`.

Nothing here imports torch.
"""
