// What the kernels share with the operations that launch them: types, sizes, and what a kernel is
// given by value.
#ifndef COWCLIP_SHARED_H
#define COWCLIP_SHARED_H

typedef unsigned int word_t;
typedef unsigned long long state_t;  // of a tile that others look back at: see group.cuh
typedef long long index_t;           // n * d and u * d may exceed 2^31
typedef unsigned short bfloat16_t;   // its bits

// Gradients and inputs of the hidden layers. The host passes them on.
#ifndef BFLOAT16
typedef void value_t;
#elif BFLOAT16
typedef bfloat16_t value_t;
#else
typedef float value_t;
#endif

// Threads of a block, each with two of the digits of a radix pass; keys of a tile; bits of a digit.
enum { BLOCK = 256, ITEMS = 16, CHUNK = BLOCK * ITEMS, DIGITS = 512, DIGIT_BITS = 9 };
// Most occurrences of an id that one tile sums; more frequent ids are summed in pieces.
enum { SEGMENT = 128 };
// Most tables, dense weights and matrices of one launch.
enum { MOST_TABLES = 16, MOST_WEIGHTS = 64, MOST_MATRICES = 32 };

// What a replay needs to know about a table. One launch serves several tables: each has some blocks
// of it, and tiles for its own row length. The number of steps since the last flush is in device
// memory: the host need not know it.
struct ReplayTable {
    float *w, *m, *v, *last;
    const float* history;
    const index_t* steps;
    index_t capacity, rows;
    int d, tile, slot, first_block, blocks;
    int parts;  // of a table that is swept in as many steps; 0 if it is flushed
    float keep_m, keep_v, epsilon, l2;
};

struct ReplayTables {
    int count;
    ReplayTable of[MOST_TABLES];
};

// What the rows of a table need that a batch reads.
struct FetchTable {
    const float *w, *m, *v, *last, *history;
    const index_t* steps;
    const word_t *ids, *u;
    float *row_w, *row_m, *row_v;  // [u, d]
    index_t capacity;
    int d, first_block, blocks;
    float keep_m, keep_v, epsilon, l2;
};

struct FetchTables {
    int count;
    FetchTable of[MOST_TABLES];
};

// What `read_batch` reads and writes.
struct Reading {
    const float *w, *wide;  // rows of the embeddings [., d], and id weights [.] or null
    const word_t *slots;    // index of the distinct id of each occurrence [b, fields]
    const word_t *ids;      // distinct ids, if rows lie in the tables; null if side by side
    const float* x;         // [b, numbers]
    value_t* flat;          // [b, width]: embeddings, numbers, zeros
    float *first;           // sum of the id weights [b], or null
    float *second, *sums;   // second-order term [b] and sums of embeddings [b, d], or null
    index_t batch;
    int fields, d, tile, numbers, width;
};

// What the sums of a table need.
//
// With `fields` = 0, there is a gradient for each occurrence, values [n, d]. Otherwise occurrence i
// is in row b = i / fields of a batch, by `reciprocal` and `shift`. Its gradient is in that of the
// hidden layers' input, values [b, pitch], from i % fields * d on. With `sums`, FM's term
// row_g[b] * (sums[b] - w) is added, whose sums of embeddings are [b, d]. Id weights have neither
// values nor sums: the gradient of their sum is row_g[b].
struct SumTable {
    const value_t* values;
    const float *row_g, *sums, *w;
    const word_t *order, *starts, *ids, *u;
    word_t *queued, *hot, *hot_first, *piece_begin, *piece_end, *piece_row;
    float *partial, *g;
    int d, tile, slot, first_block, blocks, fields, pitch, compact, shift;
    word_t reciprocal;
};

struct SumTables {
    int count;
    SumTable of[MOST_TABLES];
};

// What a step needs to know about a table. A table without step counts has neither `last`
// nor what belongs to it. If the rows have been fetched, they are up to date and lie side by side,
// row_w [u, d] and so on. With Adagrad, m has `width` accumulators per row, and there is no v; `rows`
// is not 0 if absent rows step, too.
struct StepTable {
    float *w, *m, *v, *last, *history;
    const float *g, *row_w, *row_m, *row_v;
    const word_t *ids, *starts, *u;
    const index_t* steps;  // since the last flush, before this step
    index_t* done;         // after it
    index_t capacity, rows;
    double r, least, bound;
    int d, tile, slot, first_block, blocks, kind, counted, width;
    float keep_m, keep_v, epsilon, l2;
};

struct StepTables {
    int count;
    StepTable of[MOST_TABLES];
};

// A weight tensor, with some blocks of the launch.
struct DenseWeight {
    float *w, *m, *v;
    const float* g;
    index_t size;
    int first_block, blocks;
};

struct DenseWeights {
    int count;
    DenseWeight of[MOST_WEIGHTS];
};

// A matrix to be copied to another type or shape, with some blocks of the launch. What is beyond
// the source is 0.
struct CopyMatrix {
    const void* from;
    void* to;
    index_t from_rows, from_columns, from_stride, to_rows, to_columns;
    int from_bfloat16, to_bfloat16;
    int first_block, blocks;
};

struct CopyMatrices {
    int count;
    CopyMatrix of[MOST_MATRICES];
};

#endif
