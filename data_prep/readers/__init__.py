"""Readers of tables and other files of users, and of HDF5 and npz."""
