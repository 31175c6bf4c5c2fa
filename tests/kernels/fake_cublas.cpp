// cuBLASLt's entry points on the CPU: products by loops, with the rules of NVIDIA's documentation.
//
// What the documentation forbids returns CUBLAS_STATUS_INVALID_VALUE (7), and what cuBLASLt has no
// kernel for NOT_SUPPORTED (15) or no algorithm. Where the documentation is silent, the fake is
// strict: an epilogue wants 16-byte rows of every matrix, and the mask's bits are in an odd order.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace {
enum { OK = 0, INVALID = 7, NONE = 15 };
enum { F32 = 0, BF16 = 14 };
constexpr int DEFAULT = 1, RELU = 2, BIAS = 4, DRELU = 8, BGRAD = 16, AUX = 128;
constexpr int WIDE_SUMS = 256;  // of bias gradients in float32 beside results in bfloat16

struct Desc {
    int compute, scale, transpose_a = 0, transpose_b = 0;
    unsigned epilogue = DEFAULT;
    int bias_type = -1;
    void *bias = nullptr, *aux = nullptr;
    std::int64_t aux_ld = 0;

    int type_of_bias(int of_d) const { return bias_type < 0 ? of_d : bias_type; }
};
struct Layout {
    int type;
    std::uint64_t rows, columns;
    std::int64_t ld;
};
struct Preference {
    std::uint64_t workspace = 0;
    unsigned alignment[4] = {256, 256, 256, 256};
};
struct Result {
    std::uint64_t algorithm[8];
    std::size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

std::mutex guard;
std::vector<unsigned> done;            // epilogues of the products so far
std::string why;                       // the rule that was broken last
unsigned refused = 0;                  // bits of epilogues that have no algorithm; 1: none has
bool spoiled = false;
std::int64_t alive = 0;                // descriptors that nobody has destroyed
std::size_t needs = 4096;
void* the_stream = nullptr;            // of all products

int no(int status, const char* words) {
    why = words;
    return status;
}
std::size_t size_of(int type) { return type == BF16 ? 2 : 4; }
bool aligned(const void* at, std::size_t bytes) { return (std::uintptr_t)at % bytes == 0; }

float widen(std::uint16_t bits) {
    const std::uint32_t wide = (std::uint32_t)bits << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}
std::uint16_t round_bf16(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return (std::uint16_t)((bits >> 16) | 64);
    return (std::uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float load(const void* from, int type, std::size_t i) {
    return type == BF16 ? widen(((const std::uint16_t*)from)[i]) : ((const float*)from)[i];
}
void store(void* to, int type, std::size_t i, float x) {
    if (type == BF16) ((std::uint16_t*)to)[i] = round_bf16(x);
    else ((float*)to)[i] = x;
}

int check(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    const bool ta = desc.transpose_a, tb = desc.transpose_b;
    const auto m = ta ? a.columns : a.rows, ka = ta ? a.rows : a.columns;
    const auto n = tb ? b.rows : b.columns, kb = tb ? b.columns : b.rows;
    if (m == 0 || n == 0 || ka == 0) return no(INVALID, "empty");
    if (ka != kb || m != d.rows || n != d.columns) return no(INVALID, "shapes");
    if (c.type != d.type || c.rows != d.rows || c.columns != d.columns) return no(INVALID, "C");
    for (const Layout* each : {&a, &b, &c, &d})
        if (each->ld < (std::int64_t)each->rows) return no(INVALID, "leading dimension");
    if (desc.scale != F32) return no(INVALID, "scale type");
    if (a.type != b.type) return no(NONE, "types of A and B");
    if (a.type == F32 && d.type != F32) return no(NONE, "type of D");
    if (a.type == BF16 && desc.compute != 68) return no(NONE, "compute type");
    if (desc.compute != 68 && desc.compute != 77) return no(NONE, "compute type");
    const unsigned e = desc.epilogue;
    if (e != DEFAULT && e != (RELU | BIAS) && e != (RELU | AUX | BIAS) && e != (DRELU | AUX | BGRAD))
        return no(NONE, "epilogue");
    if (e == DEFAULT) return OK;
    if (!desc.bias) return no(INVALID, "bias pointer");
    const int type = desc.type_of_bias(d.type);
    if (type != d.type && (type != F32 || !(e & BGRAD))) return no(NONE, "type of the bias");
    if (!aligned(desc.bias, 16)) return no(NONE, "bias alignment");
    if (e & AUX) {
        if (!desc.aux) return no(INVALID, "aux pointer");
        if (desc.aux_ld % 128 || desc.aux_ld < (std::int64_t)m) return no(INVALID, "aux ld");
        if (!aligned(desc.aux, 16)) return no(NONE, "aux alignment");
    }
    for (const Layout* each : {&a, &b, &d}) {
        if (each->ld * size_of(each->type) % 16) return no(NONE, "epilogue on unaligned rows");
        if (each->rows * size_of(each->type) % 16) return no(NONE, "epilogue on unaligned rows");
    }
    return OK;
}

// What an algorithm has been chosen for.
void remember(std::uint64_t* out, const Desc& desc, const Layout& a, const Layout& b,
              const Layout& d, const unsigned* alignment) {
    const std::uint64_t words[] = {
        1 + desc.epilogue + 1000u * desc.compute + 100000u * (desc.transpose_a + 2 * desc.transpose_b),
        d.rows, d.columns, desc.transpose_a ? a.rows : a.columns,
        (std::uint64_t)(a.ld + 7919 * b.ld), (std::uint64_t)(d.ld + 7919 * (a.type + 64 * d.type)),
        (std::uint64_t)(desc.aux_ld + 64 * desc.type_of_bias(d.type)),
        alignment[0] | (std::uint64_t)alignment[1] << 20 | (std::uint64_t)alignment[3] << 40};
    std::memcpy(out, words, sizeof words);
}

// The bit of an element in the mask; another order than the obvious one.
std::size_t bit_of(std::size_t row, std::size_t column, std::int64_t ld) {
    return column * ld + (row ^ 5);
}

void compute(const Desc& desc, const Layout& a, const void* A, const Layout& b, const void* B,
             const Layout& d, void* D) {
    const auto m = d.rows, n = d.columns, k = desc.transpose_a ? a.rows : a.columns;
    const unsigned e = desc.epilogue;
    std::vector<float> row_sum(m, 0.0f), wide_a(m * k), column(k);
    auto* mask = (unsigned char*)desc.aux;
    for (std::size_t i = 0; i < m; ++i)
        for (std::size_t l = 0; l < k; ++l)
            wide_a[i * k + l] = load(A, a.type, desc.transpose_a ? l + i * a.ld : i + l * a.ld);
    for (std::size_t j = 0; j < n; ++j) {
        if ((e & AUX) && (e & RELU)) std::memset(mask + j * desc.aux_ld / 8, 0, desc.aux_ld / 8);
        for (std::size_t l = 0; l < k; ++l)
            column[l] = load(B, b.type, desc.transpose_b ? j + l * b.ld : l + j * b.ld);
        for (std::size_t i = 0; i < m; ++i) {
            float x = 0.0f;
            for (std::size_t l = 0; l < k; ++l) x += wide_a[i * k + l] * column[l];
            if (spoiled) x += 0.05f * x;
            if (e & BIAS) x += load(desc.bias, desc.type_of_bias(d.type), i);
            const std::size_t bit = bit_of(i, j, desc.aux_ld);
            if (e & RELU) {
                if ((e & AUX) && x > 0.0f) mask[bit / 8] |= 1u << bit % 8;
                x = x > 0.0f ? x : 0.0f;
            }
            if ((e & DRELU) && !(mask[bit / 8] >> bit % 8 & 1)) x = 0.0f;
            row_sum[i] += x;
            store(D, d.type, i + j * d.ld, x);
        }
    }
    if (e & BGRAD)
        for (std::size_t i = 0; i < m; ++i)
            store(desc.bias, desc.type_of_bias(d.type), i, row_sum[i]);
}
}  // namespace

extern "C" {
int cublasLtCreate(void** handle) {
    *handle = &done;
    return OK;
}
int cublasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
    *desc = new Desc{compute, scale};
    ++alive;
    return OK;
}
int cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, std::size_t size) {
    struct {
        int attribute;
        std::size_t size;
        void* at;
    } const known[] = {{3, 4, &desc->transpose_a}, {4, 4, &desc->transpose_b},
                       {7, 4, &desc->epilogue},    {8, 8, &desc->bias},
                       {11, 8, &desc->aux},        {12, 8, &desc->aux_ld},
                       {26, 4, &desc->bias_type}};
    for (const auto& each : known)
        if (each.attribute == attribute && each.size == size && value) {
            std::memcpy(each.at, value, size);
            return OK;
        }
    return no(INVALID, "attribute of a product");
}
int cublasLtMatmulDescDestroy(Desc* desc) {
    delete desc;
    --alive;
    return OK;
}
int cublasLtMatrixLayoutCreate(Layout** layout, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t ld) {
    if (type != F32 && type != BF16) return no(INVALID, "type of a matrix");
    *layout = new Layout{type, rows, columns, ld};
    ++alive;
    return OK;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) {
    delete layout;
    --alive;
    return OK;
}
int cublasLtMatmulPreferenceCreate(Preference** preference) {
    *preference = new Preference;
    ++alive;
    return OK;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value,
                                         std::size_t size) {
    if (attribute == 1 && size == 8) {
        std::memcpy(&preference->workspace, value, size);
    } else if (attribute >= 5 && attribute <= 8 && size == 4) {
        std::memcpy(&preference->alignment[attribute - 5], value, size);
    } else {
        return no(INVALID, "attribute of a preference");
    }
    return OK;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) {
    delete preference;
    --alive;
    return OK;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, Desc* desc, Layout* a, Layout* b, Layout* c,
                                   Layout* d, Preference* preference, int wanted, Result* results,
                                   int* found) {
    const std::lock_guard<std::mutex> lock(guard);
    *found = 0;
    if (handle != &done || wanted < 1) return no(INVALID, "handle");
    if (const int status = check(*desc, *a, *b, *c, *d)) return status;
    if ((refused & DEFAULT) || (desc->epilogue & refused)) return OK;
    if ((refused & WIDE_SUMS) && desc->type_of_bias(d->type) != d->type) return OK;
    for (unsigned each : preference->alignment)
        if (each < 2) return OK;
    for (int i = 0; i < (wanted < 2 ? wanted : 2); ++i) {  // the first is one that cannot run
        results[i] = Result{};
        results[i].state = i == 0 && wanted > 1 ? NONE : OK;
        results[i].workspace = needs;
        remember(results[i].algorithm, *desc, *a, *b, *d, preference->alignment);
        ++*found;
    }
    return needs <= preference->workspace ? OK : no(NONE, "workspace");
}
int cublasLtMatmul(void* handle, Desc* desc, const float* alpha, const void* A, Layout* a,
                   const void* B, Layout* b, const float* beta, const void* C, Layout* c, void* D,
                   Layout* d, const std::uint64_t* algorithm, void* workspace,
                   std::size_t workspace_size, void* stream) {
    const std::lock_guard<std::mutex> lock(guard);
    if (handle != &done || stream != the_stream) return no(INVALID, "handle or stream");
    if (!A || !B || !C || !D) return no(INVALID, "null matrix");
    if (const int status = check(*desc, *a, *b, *c, *d)) return status;
    if (!algorithm) return no(INVALID, "no algorithm");
    if (workspace_size < needs || !workspace || !aligned(workspace, 16)) return no(INVALID, "workspace");
    const auto packed = algorithm[7];
    const unsigned alignment[4] = {(unsigned)(packed & 0xfffff), (unsigned)(packed >> 20 & 0xfffff),
                                   0, (unsigned)(packed >> 40)};
    std::uint64_t now[8];
    remember(now, *desc, *a, *b, *d, alignment);
    if (std::memcmp(now, algorithm, sizeof now)) return no(INVALID, "algorithm of another product");
    if (!aligned(A, alignment[0]) || !aligned(B, alignment[1]) || !aligned(D, alignment[3]))
        return no(INVALID, "less aligned than promised");
    if (*alpha != 1.0f || *beta != 0.0f) return no(NONE, "alpha or beta");
    compute(*desc, *a, A, *b, B, *d, D);
    std::memset(workspace, 0xab, needs);
    done.push_back(desc->epilogue);
    return OK;
}

void fake_use_stream(void* stream) { the_stream = stream; }
void fake_reset(unsigned refuse, int spoil) {
    const std::lock_guard<std::mutex> lock(guard);
    done.clear();
    why.clear();
    refused = refuse;
    spoiled = spoil != 0;
}
int fake_products(unsigned* epilogues, int most) {
    for (std::size_t i = 0; i < done.size() && (int)i < most; ++i) epilogues[i] = done[i];
    return (int)done.size();
}
int fake_alive() { return (int)alive; }
const char* fake_why() { return why.c_str(); }
}
