def write_table(folder, table):
    pass
