"""Raw days of Telecom Italia's open data, for Milan and Trentino."""
