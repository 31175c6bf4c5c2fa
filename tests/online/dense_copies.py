"""Give a dense offline model the weights of an online trainer."""

from cowclip_merlin import compat


def take_weights(model, trainer, rows):
    """Copy rows of the growing tables and all dense weights; return the tables and the others."""
    tables = [layer.table for layer in model.row_sync.layers]
    for mine, memory in zip(tables, trainer.table.memory, strict=True):
        mine.assign(memory.w[rows])
    known = {id(compat.stored(mine)) for mine in tables}
    dense = [x for x in model.trainable_variables if id(compat.stored(x)) not in known]
    for mine, theirs in zip(dense, trainer.dense_variables, strict=True):
        mine.assign(theirs)
    return tables, dense
