// What operations of the persistent kernel share: their records, shared memory, and the wait between them.
#pragma once
#include "attention_merge.cuh"
#include "attention_short.cuh"

// Warps that compute, and all of them: one of the others loads weights, one prefetches them, two do nothing, as
// registers are given and taken by four warps at a time.
constexpr int STEP_WARPS = 16, STEP_THREADS = STEP_WARPS * 32, LAUNCH_THREADS = STEP_THREADS + 128;
// Registers of their threads. A launch takes 96 for each of LAUNCH_THREADS, which they share.
constexpr int STEP_REGISTERS = 112, LOADING_REGISTERS = 32;
static_assert(STEP_THREADS * STEP_REGISTERS + 128 * LOADING_REGISTERS <= LAUNCH_THREADS * 96, "registers suffice");
// Slots of weights in shared memory, each for some jobs of a product.
constexpr int SLOTS = 8, SLOT_JOBS = 4, SLOT_BYTES = SLOT_JOBS * BLOCK_BYTES;
// Bytes of an operation at most, and operations that are there at once.
constexpr int OPERATION_BYTES = 1024, OPERATIONS_KNOWN = 3;
// Tiles of a product whose segments are added up at the same time.
constexpr int TILES_OPEN = 4;

enum OperationKind {
    PRODUCT_OF_ROW,
    PRODUCT_OF_INTEGERS,
    GATED,
    DELTA_TOKEN_64,
    DELTA_TOKEN_128,
    SCORES_64,
    SCORES_128,
    SCORES_256,
    VALUES_64,
    VALUES_128,
    VALUES_256,
    MERGE,
    VALUES_SHORT_64,
    VALUES_SHORT_128,
    VALUES_SHORT_256,
    EMBED_4,
    EMBED_8,
    RMS_NORM,
    SAMPLE_PARTS,
    SAMPLE_ROW,
};

// At the start of each operation; its arguments follow, each at a multiple of 8 bytes.
struct OperationHead {
    int kind;
    // Bytes of the two operations after this one; 0: none.
    unsigned short next, after;
};

// Where the weights of a product are.
struct ProductWeights {
    const u8* weights[MAX_PARTS];
    int tiles[MAX_PARTS];
    // Of all parts, and of a tile.
    int all_tiles, segments;
};

struct StepShared {
    // Of slots whose weights are there, and of slots whose weights have been used.
    u64 full_barriers[SLOTS], empty_barriers[SLOTS];
    u64 operation_barriers[OPERATIONS_KNOWN];
    // Where the operation to be fetched next starts. One thread needs it, and registers are scarce.
    const unsigned char* next_operation;
    // Warps that have added to each open tile.
    u32 arrived[TILES_OPEN];
    // Of the current product: the next job that no warp has, the slot of the first one, and how many slots it has.
    u32 next_job, first_slot, slots;
    // Slots that were loaded so far.
    u32 loaded;
    // The slot after the last one of the product that is being multiplied, or was.
    u32 current_end;
    __align__(16) unsigned char operations[OPERATIONS_KNOWN][OPERATION_BYTES];
    __align__(128) unsigned char weights[SLOTS][SLOT_BYTES];

    // What an operation has for itself.
    __device__ __forceinline__ unsigned char* scratch() { return (unsigned char*)(this + 1); }
};
// Bytes of it.
constexpr int SCRATCH = (227 << 10) - (int)sizeof(StepShared);
static_assert(SCRATCH == 81664, "the size that parameters.rs has");
static_assert(sizeof(ValueShared) <= SCRATCH && sizeof(ShortShared) <= SCRATCH &&
                  sizeof(MergeShared) <= SCRATCH && sizeof(ScoreShared<64>) <= SCRATCH &&
                  sizeof(ScoreShared<128>) <= SCRATCH && sizeof(ScoreShared<256>) <= SCRATCH,
              "attention fits");

// Arguments of an operation, in order.
struct ArgumentReader {
    const unsigned char* at;

    template <class T>
    __device__ __forceinline__ const T& take() {
        const T& value = *in_shared((const T*)at);
        at += (sizeof(T) + 7) / 8 * 8;
        return value;
    }
};

// Waits for all warps that compute.
__device__ __forceinline__ void sync_step() { sync_threads(0, STEP_THREADS); }

// Waits until all CTAs have finished the previous operation.
struct PreviousOperation {
    const u32* finished;
    u32 target;

    __device__ __forceinline__ void operator()() const {
        if (thread_index() == 0)
            while ((int)(load_acquire(finished) - target) < 0) relax();
        sync_step();
    }
};
