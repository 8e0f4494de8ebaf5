// MLX's kernels of products, of attention of few queries and of the delta rule of few tokens, on the emulated
// threadgroups: their results, and on what a row's bits depend. Usage: the program, a seed for the order of threads.
#include "emulation.h"

// What MLX's headers name and nothing here calls.
template <bool FIRST, class A, class B>
struct ConditionalType { typedef B type; };
template <class A, class B>
struct ConditionalType<true, A, B> { typedef A type; };
namespace mlx::steel {
template <class, class, int...>
struct BlockMMA;
template <class, int...>
struct BlockLoader;
}  // namespace mlx::steel
struct ulong3 { uint64_t x, y, z; };
int64_t elem_to_loc(uint, const int*, const int64_t*, int);
ulong2 elem_to_loc_broadcast(uint, const int*, const int64_t*, const int64_t*, int);
ulong3 elem_to_loc_broadcast(uint, const int*, const int64_t*, const int64_t*, const int64_t*, int);

bool save_state = false;
using namespace metal;

#include "gated_delta_update.h"
#include "quantized.h"
#include "sdpa_vector.h"

namespace {

unsigned seed;
int comparisons = 0;

std::vector<float> numbers(size_t count, unsigned from) {
    std::mt19937 random(from);
    std::vector<float> made(count);
    for (float& x : made) x = (float)((int)(random() % 4001) - 2000) / 1000;
    return made;
}

template <class T>
std::vector<T> of_type(const std::vector<float>& from) {
    std::vector<T> to;
    for (float x : from) to.push_back(static_cast<T>(x));
    return to;
}

template <class T>
bool same(const T* a, const T* b, size_t count) {
    comparisons++;
    return memcmp(a, b, count * sizeof(T)) == 0;
}

// A quantised matrix, and rows of inputs: row r is the same whatever the number of rows.
template <class T, int BITS>
struct Problem {
    int inputs, outputs;
    std::vector<uint32_t> codes;
    std::vector<T> scales, biases;

    Problem(int inputs, int outputs) : inputs(inputs), outputs(outputs) {
        std::mt19937 random(5);
        codes.resize((size_t)outputs * inputs * BITS / 32);
        for (uint32_t& word : codes) word = random();
        const size_t groups = (size_t)outputs * inputs / 64;
        scales = of_type<T>(numbers(groups, 6)), biases = of_type<T>(numbers(groups, 7));
        for (T& scale : scales) scale = static_cast<T>((float)scale / 16);
    }
    static std::vector<T> rows(int inputs, int count) {
        std::vector<float> all;
        for (int r = 0; r < count; r++) {
            const auto own = numbers(inputs, 100 + r);
            all.insert(all.end(), own.begin(), own.end());
        }
        return of_type<T>(all);
    }
    double expected(const T* x, int output) const {
        double sum = 0;
        for (int i = 0; i < inputs; i++) {
            const size_t at = (size_t)output * inputs + i;
            const uint32_t code = codes[at * BITS / 32] >> (at * BITS % 32) & ((1u << BITS) - 1);
            sum += (double)(float)x[i] * (code * (double)(float)scales[at / 64] + (double)(float)biases[at / 64]);
        }
        return sum;
    }
    void check(const std::vector<T>& x, const std::vector<T>& y, int rows, const char* name) const {
        for (int r = 0; r < rows; r++) {
            for (int o = 0; o < outputs; o++) {
                const double want = expected(&x[(size_t)r * inputs], o), got = (float)y[(size_t)r * outputs + o];
                const double bound = (sizeof(T) == 4 ? 1e-4 : 2e-2) * (std::fabs(want) + 10);
                CHECK(std::fabs(got - want) <= bound, "%s: row %d, output %d is %g, not %g", name, r, o, got, want);
            }
        }
    }

    template <class Kernel>
    std::vector<T> run(int count, uint groups_x, uint groups_y, Kernel kernel, uint threads = 64) const {
        std::vector<T> x = rows(inputs, count), y((size_t)count * outputs);
        for (uint i = 0; i < groups_x * groups_y; i++) {
            const uint3 tid{i % groups_x, i / groups_x, 0};
            Group(threads, seed + i, [&](uint thread_index) { kernel(x.data(), y.data(), tid, thread_index / 32, thread_index % 32); });
        }
        return y;
    }
    // One row at a time: each threadgroup has one.
    std::vector<T> by_row(int count, bool fast) const {
        int k = inputs, n = outputs, none = 0;
        const auto kernel = [&](const T* x, T* y, uint3 tid, uint simd, uint lane) {
            if (fast) {
                affine_qmv_fast<T, 64, BITS, false>(codes.data(), scales.data(), biases.data(), x, y, k, n, none, nullptr,
                                                    nullptr, none, nullptr, nullptr, nullptr, nullptr, tid, simd, lane);
            } else {
                affine_qmv<T, 64, BITS, false>(codes.data(), scales.data(), biases.data(), x, y, k, n, none, nullptr,
                                               nullptr, none, nullptr, nullptr, nullptr, nullptr, tid, simd, lane);
            }
        };
        return run(count, count, (outputs + 7) / 8, kernel);
    }
    // The same for rows of only `inputs`, 64 or 128.
    template <int INPUTS>
    std::vector<T> by_quads(int count) const {
        int k = inputs, n = outputs, none = 0;
        const auto kernel = [&](const T* x, T* y, uint3 tid, uint, uint lane) {
            affine_qmv_quad<T, 64, BITS, INPUTS, false>(codes.data(), scales.data(), biases.data(), x, y, k, n, none, nullptr,
                                                        nullptr, none, nullptr, nullptr, nullptr, nullptr, tid, lane / 4, lane % 4);
        };
        return run(count, count, (outputs + 63) / 64, kernel, 32);
    }
    // `VECTORS` rows in a threadgroup.
    template <int VECTORS, int LANES>
    std::vector<T> wide(int count) const {
        int k = inputs, n = outputs, none = 0;
        const auto kernel = [&](const T* x, T* y, uint3 tid, uint simd, uint lane) {
            affine_qmv_wide<T, 64, BITS, VECTORS, LANES, false>(codes.data(), scales.data(), biases.data(), x, y, k, n, count,
                                                                none, nullptr, nullptr, none, nullptr, nullptr, nullptr,
                                                                nullptr, tid, simd, lane);
        };
        return run(count, (count + VECTORS - 1) / VECTORS, (outputs + 64 / LANES - 1) / (64 / LANES), kernel);
    }
};

// Each row of `got` is that of `alone`.
template <class T>
void rows_agree(const std::vector<T>& got, const std::vector<T>& of, int count, int outputs, const char* what) {
    for (int r = 0; r < count; r++) {
        CHECK(same(&got[(size_t)r * outputs], &of[(size_t)r * outputs], outputs), "%s: row %d of %d has other bits", what, r, count);
    }
}

template <class T, int BITS>
void products() {
    const int most = 9;
    for (const bool fast : {true, false}) {
        // The fast kernel takes whole blocks of inputs and outputs.
        const Problem<T, BITS> problem(fast ? 512 : 576, fast ? 16 : 20);
        const auto all = problem.by_row(most, fast);
        problem.check(problem.rows(problem.inputs, most), all, most, "qmv");
        for (int count : {1, 2, 5}) rows_agree(problem.by_row(count, fast), all, count, problem.outputs, "qmv");
        const auto wide = problem.template wide<4, 16>(most);
        problem.check(problem.rows(problem.inputs, most), wide, most, "qmv_wide");
        // Rows taken together do not change each other, however many there are and wherever they are cut.
        for (int count : {2, 3, 5, 8, 9}) {
            rows_agree(problem.template wide<2, 16>(count), wide, count, problem.outputs, "qmv_wide by 2");
            rows_agree(problem.template wide<3, 16>(count), wide, count, problem.outputs, "qmv_wide by 3");
            rows_agree(problem.template wide<8, 16>(count), wide, count, problem.outputs, "qmv_wide by 8");
        }
        const auto by_32 = problem.template wide<4, 32>(most);
        for (int count : {2, 9}) rows_agree(problem.template wide<2, 32>(count), by_32, count, problem.outputs, "qmv_wide, 32 lanes");
        // Why calls of one row are tried apart from those of more.
        CHECK(all.size() == wide.size() && memcmp(all.data(), wide.data(), all.size() * sizeof(T)) != 0 || sizeof(T) == 2,
              "qmv and qmv_wide give the same bits: rows alone need not be filled up any more");
    }
}

template <class T, int BITS, int INPUTS>
void short_products() {
    const Problem<T, BITS> problem(INPUTS, 72);
    const auto all = problem.template by_quads<INPUTS>(6);
    problem.check(problem.rows(INPUTS, 6), all, 6, "qmv_quad");
    for (int count : {1, 2, 5}) rows_agree(problem.template by_quads<INPUTS>(count), all, count, problem.outputs, "qmv_quad");
}

// The last queries of a sequence over its keys, of each head.
template <class T, int DIM>
std::vector<T> attend(int queries, int keys, const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v) {
    const int heads = 4;
    std::vector<T> out((size_t)heads * queries * DIM);
    int share = 2, length = keys, none = 0;
    size_t head_stride = k.size() / (heads / share), row_stride = DIM;
    float scale = 0.125f;
    do_causal = true, query_transposed = true, has_mask = bool_mask = float_mask = has_sinks = false;
    const uint3 grid{(uint)heads, (uint)queries, 1};
    for (uint i = 0; i < grid.x * grid.y; i++) {
        const uint3 tid{i % grid.x, i / grid.x, 0};
        Group(1024, seed + i, [&](uint thread_index) {
            sdpa_vector<T, DIM>(q.data(), k.data(), v.data(), out.data(), share, length, head_stride, row_stride, head_stride,
                                row_stride, scale, nullptr, nullptr, none, none, none, nullptr, none, tid, grid,
                                thread_index / 32, thread_index % 32);
        });
    }
    return out;
}

template <class T, int DIM>
void attention() {
    const int heads = 4, kv_heads = 2;
    for (const int keys : {3, 40, 70}) {
        const int queries = 3;
        // Rows of queries, [queries, heads, dim], keys of each head.
        const auto q = of_type<T>(numbers((size_t)queries * heads * DIM, 1)), k = of_type<T>(numbers((size_t)kv_heads * keys * DIM, 2)),
                   v = of_type<T>(numbers((size_t)kv_heads * keys * DIM, 3));
        const auto together = attend<T, DIM>(queries, keys, q, k, v);
        for (int i = 0; i < queries; i++) {
            const int seen = keys - queries + i + 1;
            const std::vector<T> own(q.begin() + i * heads * DIM, q.begin() + (i + 1) * heads * DIM);
            const auto alone = attend<T, DIM>(1, seen, own, k, v);
            for (int h = 0; h < heads; h++) {
                const T* row = &together[((size_t)h * queries + i) * DIM];
                CHECK(same(row, &alone[(size_t)h * DIM], DIM), "sdpa_vector: query %d of head %d over %d keys has other bits", i, h, keys);
                // Against doubles.
                std::vector<double> sum(DIM);
                double total = 0;
                for (int key = 0; key < seen; key++) {
                    const T* at = &k[((size_t)h / 2 * keys + key) * DIM];
                    double score = 0;
                    for (int d = 0; d < DIM; d++) score += (double)(float)own[h * DIM + d] * (float)at[d];
                    const double weight = std::exp(score * 0.125);
                    total += weight;
                    for (int d = 0; d < DIM; d++) sum[d] += weight * (float)v[((size_t)h / 2 * keys + key) * DIM + d];
                }
                for (int d = 0; d < DIM; d++) {
                    CHECK(std::fabs(sum[d] / total - (float)row[d]) < (sizeof(T) == 4 ? 1e-4 : 2e-2), "sdpa_vector: number %d is %g, not %g", d, (float)row[d], sum[d] / total);
                }
            }
        }
    }
}

// The delta rule of `tokens` tokens of one sequence from token `first` on; the state changes.
constexpr int KEY_DIM = 64, VALUE_DIM = 8, VALUE_HEADS = 2;
template <class T>
std::vector<T> delta_rule(const std::vector<T> (&inputs)[5], int first, int tokens, std::vector<float>& state) {
    const auto& [q, k, v, g, beta] = inputs;
    std::vector<T> y((size_t)tokens * VALUE_HEADS * VALUE_DIM);
    std::vector<float> after(state.size());
    for (uint i = 0; i < VALUE_HEADS * VALUE_DIM / 4; i++) {
        const uint rows = i % (VALUE_DIM / 4), head = i / (VALUE_DIM / 4);
        Group(128, seed + i, [&](uint thread_index) {
            const uint3 own{thread_index % 32, thread_index / 32, 0}, grid{own.x, rows * 4 + own.y, head};
            gated_delta_seq<T, KEY_DIM, VALUE_DIM, 1, VALUE_HEADS, 16>(
                &q[first * KEY_DIM], &k[first * KEY_DIM], &v[first * VALUE_HEADS * VALUE_DIM], state.data(), &g[first * VALUE_HEADS],
                &beta[first * VALUE_HEADS], y.data(), after.data(), tokens, nullptr, grid, own, own.x);
        });
    }
    state = after;
    return y;
}

template <class T>
void delta_rules() {
    const int tokens = 7, state_size = VALUE_HEADS * VALUE_DIM * KEY_DIM;
    auto small = [&](size_t count, unsigned from, float scale) {
        auto made = numbers(count, from);
        for (float& x : made) x *= scale;
        return of_type<T>(made);
    };
    auto gates = [&](unsigned from) {
        auto made = numbers(tokens * VALUE_HEADS, from);
        for (float& x : made) x = 0.5f + x / 5;
        return of_type<T>(made);
    };
    const std::vector<T> inputs[5] = {small(tokens * KEY_DIM, 1, 0.1f), small(tokens * KEY_DIM, 2, 0.1f),
                                      small(tokens * VALUE_HEADS * VALUE_DIM, 3, 1), gates(4), gates(5)};
    std::vector<float> state(state_size, 0.25f);
    const auto all = delta_rule(inputs, 0, tokens, state);
    std::vector<double> expected(state_size, 0.25);
    for (int t = 0; t < tokens; t++) {
        for (int row = 0; row < VALUE_HEADS * VALUE_DIM; row++) {
            const int head = row / VALUE_DIM;
            double *own = &expected[row * KEY_DIM], memory = 0, out = 0;
            for (int i = 0; i < KEY_DIM; i++) {
                own[i] *= (float)inputs[3][t * VALUE_HEADS + head];
                memory += own[i] * (float)inputs[1][t * KEY_DIM + i];
            }
            const double change = ((float)inputs[2][t * VALUE_HEADS * VALUE_DIM + row] - memory) * (float)inputs[4][t * VALUE_HEADS + head];
            for (int i = 0; i < KEY_DIM; i++) {
                own[i] += change * (float)inputs[1][t * KEY_DIM + i];
                out += own[i] * (float)inputs[0][t * KEY_DIM + i];
            }
            const double got = (float)all[t * VALUE_HEADS * VALUE_DIM + row];
            CHECK(std::fabs(got - out) < (sizeof(T) == 4 ? 1e-4 : 2e-2), "gated_delta_seq: token %d, row %d is %g, not %g", t, row, got, out);
        }
    }
    // However the tokens are cut.
    for (const std::vector<int>& cuts : std::vector<std::vector<int>>{{1, 6}, {3, 3, 1}, {1, 1, 1, 1, 1, 1, 1}}) {
        std::vector<float> cut_state(state_size, 0.25f);
        int first = 0;
        for (const int count : cuts) {
            const auto part = delta_rule(inputs, first, count, cut_state);
            CHECK(same(part.data(), &all[first * VALUE_HEADS * VALUE_DIM], part.size()), "gated_delta_seq: tokens from %d have other bits", first);
            first += count;
        }
        CHECK(same(cut_state.data(), state.data(), state_size), "gated_delta_seq: the state has other bits");
    }
}

}  // namespace

int main(int, char** arguments) {
    seed = (unsigned)atoi(arguments[1]);
    products<float, 4>();
    products<bfloat, 4>();
    products<bfloat, 8>();
    short_products<bfloat, 4, 64>();
    short_products<float, 8, 128>();
    attention<float, 64>();
    attention<bfloat, 128>();
    delta_rules<float>();
    delta_rules<bfloat>();
    printf("%d comparisons of bits\n", comparisons);
}
