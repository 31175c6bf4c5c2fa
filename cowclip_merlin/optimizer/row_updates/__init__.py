"""Update embedding rows: engines for CPU and GPU, and the state that each row keeps."""
