// Enough of Metal's language for g++ to compile MLX's kernels, and a threadgroup whose threads are fibers of this
// thread. Lanes of a SIMD-group exchange numbers where they wait for each other; between these places threads run in an
// order that a seed shuffles, and some SIMD-groups are slower than others, so that a missing barrier shows. How a real GPU adds up a SIMD-group is not known: here
// it is a tree.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define device
#define thread
#define constant
#define METAL_FUNC inline
// For an array of a function, which all threads of a threadgroup share: the test writes it into MLX's headers.
#define SHARED_ARRAY static
#define threadgroup

typedef unsigned int uint;
typedef unsigned short ushort;
struct uint2 { uint x, y; };
struct alignas(16) uint4 { uint x, y, z, w; };
struct ulong2 {
    uint64_t x = 0, y = 0;
    ulong2() = default;
    ulong2(uint64_t x, uint64_t y) : x(x), y(y) {}
};
struct uint3 { uint x, y, z; };
struct short2 { short x, y; };
struct int3 { int x, y, z; };
typedef _Float16 half;
struct alignas(8) half4 { half x, y, z, w; };
typedef half float16_t;

// Rounded to the nearest, ties to even.
struct bfloat {
    uint16_t bits = 0;
    bfloat() = default;
    template <class T>
    explicit bfloat(T number) {
        const float wide = static_cast<float>(number);
        uint32_t word;
        memcpy(&word, &wide, 4);
        bits = (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
    operator float() const {
        const uint32_t word = (uint32_t)bits << 16;
        float wide;
        memcpy(&wide, &word, 4);
        return wide;
    }
};

typedef bfloat bfloat16_t;

template <class To, class From>
To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

// Threads of a threadgroup.
class Group {
    struct Meeting {
        int members = 0, arrived = 0;
        unsigned round = 0;
    };
    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        bool done = false;
        void* fake = nullptr;
        // Where it waits, until the round is over.
        const Meeting* waits = nullptr;
        unsigned round = 0;
    };
    static constexpr size_t STACK = 256 << 10;

    std::vector<Fiber> fibers;
    std::vector<Meeting> simds;
    Meeting all;
    std::vector<double> numbers;
    std::function<void(uint)> body;
    ucontext_t scheduler;
    void* scheduler_fake = nullptr;
    const void* scheduler_stack = nullptr;
    size_t scheduler_size = 0;
    size_t current = 0;

    void leave(bool for_ever) {
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_start_switch_fiber(for_ever ? nullptr : &fibers[current].fake, scheduler_stack, scheduler_size);
#endif
        swapcontext(&fibers[current].context, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fibers[current].fake, &scheduler_stack, &scheduler_size);
#endif
        (void)for_ever;
    }
    static void enter() {
        Group& group = *running;
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &group.scheduler_stack, &group.scheduler_size);
#endif
        group.body((uint)group.current);
        group.fibers[group.current].done = true;
        group.leave(true);
    }
    void meet(Meeting& meeting) {
        const unsigned round = meeting.round;
        if (++meeting.arrived == meeting.members) {
            meeting.arrived = 0, meeting.round++;
            return;
        }
        Fiber& own = fibers[current];
        own.waits = &meeting, own.round = round;
        leave(false);
        own.waits = nullptr;
    }

  public:
    static inline Group* running = nullptr;

    // Runs `body` for each thread of a threadgroup.
    Group(uint threads, unsigned seed, std::function<void(uint)> body) : fibers(threads), simds(threads / 32), numbers(threads), body(body) {
        running = this;
        all.members = threads;
        for (Meeting& simd : simds) simd.members = 32;
        std::vector<size_t> order(threads);
        for (size_t i = 0; i < threads; i++) {
            order[i] = i;
            Fiber& fiber = fibers[i];
            fiber.stack.reset(new char[STACK]);
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = STACK;
            makecontext(&fiber.context, enter, 0);
        }
        std::mt19937 random(seed);
        std::vector<unsigned> slowness((threads + 31) / 32);
        for (unsigned& own : slowness) own = random() % 3;
        std::vector<char> pauses(slowness.size());
        for (bool left = true; left;) {
            left = false;
            std::shuffle(order.begin(), order.end(), random);
            for (size_t i = 0; i < pauses.size(); i++) pauses[i] = random() % (1u << 2 * slowness[i]) != 0;
            for (size_t i : order) {
                if (fibers[i].done) continue;
                left = true;
                const bool waits = fibers[i].waits && fibers[i].waits->round == fibers[i].round;
                if (waits || pauses[i / 32]) continue;
                current = i;
#if defined(__SANITIZE_ADDRESS__)
                __sanitizer_start_switch_fiber(&scheduler_fake, fibers[i].stack.get(), STACK);
#endif
                swapcontext(&scheduler, &fibers[i].context);
#if defined(__SANITIZE_ADDRESS__)
                __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
            }
        }
    }

    void meet_all() { meet(all); }
    uint lane() const { return current % 32; }
    // What `of` makes of the numbers of the calling thread's SIMD-group; `lane` is its own.
    template <class F>
    double exchange(double own, F of) {
        const size_t self = current, first = self / 32 * 32;
        numbers[self] = own;
        meet(simds[first / 32]);
        const double made = of(&numbers[first], (uint)(self % 32));
        meet(simds[first / 32]);
        return made;
    }
};

namespace metal {
using std::max;
using std::min;
template <bool WHICH, class A, class B>
using conditional_t = std::conditional_t<WHICH, A, B>;
template <class T>
T clamp(T x, T low, T high) { return x < low ? low : x > high ? high : x; }
template <class T>
T select(T no, T yes, bool which) { return which ? yes : no; }

// The sum of `count` lanes from the first of their run, as a tree of floats.
inline float tree_sum(const double* lanes, uint count) {
    float sums[32];
    for (uint i = 0; i < count; i++) sums[i] = (float)lanes[i];
    for (uint half = count / 2; half; half /= 2) {
        for (uint i = 0; i < half; i++) sums[i] += sums[i + half];
    }
    return sums[0];
}
template <class T>
T simd_sum(T own) {
    return (T)Group::running->exchange(own, [](const double* lanes, uint) { return tree_sum(lanes, 32); });
}
template <class T>
T quad_sum(T own) {
    return (T)Group::running->exchange(own, [](const double* lanes, uint lane) { return tree_sum(lanes + lane / 4 * 4, 4); });
}
template <class T>
T simd_max(T own) {
    return (T)Group::running->exchange(own, [](const double* lanes, uint) { return *std::max_element(lanes, lanes + 32); });
}
template <class T>
T simd_min(T own) {
    return (T)Group::running->exchange(own, [](const double* lanes, uint) { return *std::min_element(lanes, lanes + 32); });
}
template <class T>
T simd_shuffle_down(T own, ushort by) {
    return (T)Group::running->exchange(own, [=](const double* lanes, uint lane) { return lanes[lane + by < 32 ? lane + by : lane]; });
}
template <class T>
T simd_shuffle(T own, ushort from) {
    return (T)Group::running->exchange(own, [=](const double* lanes, uint) { return lanes[from]; });
}
template <class T>
T simd_shuffle_xor(T own, ushort with) {
    return (T)Group::running->exchange(own, [=](const double* lanes, uint lane) { return lanes[lane ^ with]; });
}
enum class mem_flags { mem_none, mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { Group::running->meet_all(); }
inline void simdgroup_barrier(mem_flags) { simd_sum(0.0f); }
// A matrix, of which a lane has two neighbouring numbers of a row.
template <class T, int ROWS, int COLUMNS>
struct simdgroup_matrix {
    T own[2];
    T (&thread_elements())[2] { return own; }
    static uint row_of(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
    static uint column_of(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
};
template <class T, int ROWS, int COLUMNS>
simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T value) {
    return {{value, value}};
}
template <class T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& to, const T* from, size_t row_size, ulong2 = {}, bool transposed = false) {
    const uint lane = Group::running->lane(), row = to.row_of(lane), column = to.column_of(lane);
    for (uint c = 0; c < 2; c++) to.own[c] = transposed ? from[(column + c) * row_size + row] : from[row * row_size + column + c];
}
// to = a * b + c, added up in float in an order of its own.
template <class T>
void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& to, simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b,
                                   simdgroup_matrix<float, 8, 8> c) {
    float of_a[64], of_b[64];
    for (uint i = 0; i < 2; i++) {
        const auto spread = [&](float (&all)[64], float own) {
            Group::running->exchange(own, [&](const double* lanes, uint) {
                for (uint lane = 0; lane < 32; lane++) all[to.row_of(lane) * 8 + to.column_of(lane) + i] = (float)lanes[lane];
                return 0.0;
            });
        };
        spread(of_a, (float)a.own[i]), spread(of_b, (float)b.own[i]);
    }
    const uint lane = Group::running->lane(), row = to.row_of(lane), column = to.column_of(lane);
    for (uint i = 0; i < 2; i++) {
        float sum = 0;
        for (int k = 7; k >= 0; k--) sum += of_a[row * 8 + k] * of_b[k * 8 + column + i];
        to.own[i] = sum + c.own[i];
    }
}
inline float exp(float x) { return std::exp(x); }
inline float fabs(float x) { return std::fabs(x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
namespace precise {
inline float sqrt(float x) { return std::sqrt(x); }
}  // namespace precise
namespace fast {
inline float exp(float x) { return std::exp(x); }
}  // namespace fast
}  // namespace metal
using metal::simd_sum;

// As MLX's kernels name them.
template <class T>
struct Limits {
    static constexpr float finite_min = -std::numeric_limits<float>::max(), finite_max = std::numeric_limits<float>::max();
};

#define CHECK(holds, ...)                                                                          \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n");                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
