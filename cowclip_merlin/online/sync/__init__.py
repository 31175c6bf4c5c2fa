"""From a trainer to servers: a log of changed rows, expired ids and dense weights."""
