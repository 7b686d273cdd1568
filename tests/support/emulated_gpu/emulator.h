// Runs the code of a CUDA kernel on a CPU, thread by thread, with the parts of Hopper that the tensor-core kernels use: shared memory,
// clusters, mbarriers, asynchronous copies (also by tensor maps), wgmma with its descriptors and swizzles, stmatrix.
//
// Threads are fibers of one host thread. A thread runs until it waits for another. What the hardware does asynchronously is done either
// at once (`late` is false) or as late as the kernel's own waits allow: a kernel that reads too early is wrong in the first mode, one that
// overwrites too early in the second. Copies may also arrive in the order opposite to that in which they were asked for. A warpgroup can be made slow:
// one that does not wait for it is wrong. Shared memory begins as NaN. A kernel that waits forever ends the program, also for registers.
//
// Formats are those of the PTX ISA: matrix descriptors of wgmma, layouts of its fragments, mbarrier phases, tensor maps.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
typedef _Float16 __half;
struct __half2 { __half x, y; };
inline __half __float2half_rn(float v) { return (__half)v; }
inline __half __float2half(float v) { return (__half)v; }
inline float __half2float(__half v) { return (float)v; }
inline __half2 __floats2half2_rn(float x, float y) { return {(__half)x, (__half)y}; }
inline float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
struct __nv_fp8_e4m3 { uint8_t bits; };
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return {uint16_t(bits + 0x7FFF + (bits >> 16 & 1) >> 16)};
}
inline unsigned __float_as_uint(float v) { unsigned bits; memcpy(&bits, &v, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float v; memcpy(&v, &bits, 4); return v; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
inline float __int2float_rn(int v) { return (float)v; }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned places) {
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned found = 0;
    for (int i = 0; i < 4; ++i) found |= (unsigned)(both >> 8 * (places >> 4 * i & 7) & 255) << 8 * i;
    return found;
}
inline float __fmul_rn(float a, float b) {
    volatile float product = a * b;                             // never part of a fused multiply-add
    return product;
}
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> T __ldg(const T* from) { return *from; }
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class A, class B> auto min(A a, B b) { return a < b ? a : b; }
template <class A, class B> auto max(A a, B b) { return a < b ? b : a; }

// A tensor map of two dimensions: rows of `columns` elements of `item` bytes, boxes of `box_rows` x `box_columns`.
struct CUtensorMap { char* base; int item, rows, columns, box_rows, box_columns, swizzle; };

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)

namespace emu {

[[noreturn]] inline void stop(const char* why) {
    fprintf(stderr, "emulator: %s\n", why);
    exit(3);
}

inline bool late = false, newest_first = false;     // the latter: of copies that are late
inline int slow = -1;       // the warpgroup whose threads run only when no other can
constexpr unsigned WINDOW = 1 << 18, STATIC = 16384, STACK = 1 << 16;   // shared memory, its static part, a thread's stack

struct Barrier { int count = 0, pending = 0, bytes = 0; unsigned phase = 0; };
struct Meeting { int arrived = 0; unsigned round = 0; };
// One wgmma: descriptors, and where each of the 128 threads keeps its results.
// `from_registers`: a is in the threads' registers, four pairs each.
struct Product {
    uint64_t a, b;
    int columns, item, transposed_a, transposed_b;
    bool accumulate, bfloat, from_registers, integers, done = false;
    int threads = 0;
    float* sums[128][128];
    uint32_t rows[128][4];
};
struct Warpgroup { std::deque<std::unique_ptr<Product>> products; };
struct Warp { Meeting meeting; uint64_t values[32][5]; };
struct Cluster;
struct Block {
    char* shared;
    uint3 index;
    unsigned rank;
    int threads;
    Cluster* cluster;
    Meeting barriers[16];
    std::deque<Warp> warps;
    std::deque<Warpgroup> groups;
    std::map<unsigned, Barrier> mbarriers;
    int registers = 0;                                          // that threads have given back
};
struct Cluster { std::vector<std::unique_ptr<Block>> blocks; Meeting meeting, grid; std::deque<std::function<void()>> in_flight; };
struct Fiber {
    ucontext_t context;
    char* stack;
    Block* block;
    uint3 thread;
    std::function<bool()> wait;
    bool ended = false;
    unsigned cluster_round = 0;
    int registers = 0;
    size_t products = 0;                                        // of its warpgroup that this thread has issued
    std::vector<size_t> commits;
    std::vector<std::function<void()>> copies;                  // cp.async that have not been waited for
    std::deque<std::vector<std::function<void()>>> stores;      // bulk groups that still read shared memory; the last one is open
};
inline Fiber* current;
inline ucontext_t scheduler;
inline uint3 grid_dim, block_dim;

inline Block& block() { return *current->block; }
inline unsigned lane() { return current->thread.x % 32; }
inline Warp& warp() { return block().warps[current->thread.x / 32]; }

inline void wait_until(std::function<bool()> ready) {
    if (ready()) return;
    current->wait = std::move(ready);
    swapcontext(&current->context, &scheduler);
}
// One copy arrives, if one is under way.
inline bool deliver(Cluster& cluster) {
    auto& copies = cluster.in_flight;
    if (copies.empty()) return false;
    auto act = newest_first ? copies.back() : copies.front();
    newest_first ? copies.pop_back() : copies.pop_front();
    act();
    return true;
}
// A thread reads again and again what another block writes: others run, and now and then a copy arrives.
inline void poll() {
    static long polls = 0;
    if (++polls % 20 == 0) deliver(*block().cluster);
    if (polls > 50000000) stop("threads read again and again what nobody writes");
    current->wait = [] { return true; };
    swapcontext(&current->context, &scheduler);
}
template <class Leader> void meet(Meeting& m, int count, Leader leader) {
    const unsigned round = m.round;
    if (++m.arrived == count) {
        leader();
        m.arrived = 0, ++m.round;
    } else wait_until([&m, round] { return m.round != round; });
}
inline void meet(Meeting& m, int count) { meet(m, count, [] {}); }

inline void* static_shared(int id, size_t size, size_t alignment) {
    static std::map<int, unsigned> places;
    static unsigned end = 0;
    if (!places.count(id)) {
        places[id] = (end + alignment - 1) / alignment * alignment;
        end = places[id] + size;
        if (end > STATIC) stop("too much static shared memory");
    }
    return block().shared + places[id];
}
inline void* dynamic_shared() { return block().shared + STATIC; }
inline unsigned shared_offset(const void* p) {
    const long offset = (const char*)p - block().shared;
    if (offset < 0 || offset >= (long)WINDOW) stop("an address outside of the block's shared memory");
    return (unsigned)offset;
}
// A shared address of the cluster is a block's rank and an offset in its window; of the own block it is the offset alone.
inline Block& block_of(unsigned address) { return address >> 24 ? *block().cluster->blocks[(address >> 24) - 1] : block(); }
inline char* at(Block& where, unsigned offset) {
    if (offset >= WINDOW) stop("an address beyond shared memory");
    return where.shared + offset;
}

inline void settle(Barrier& b) {
    if (b.pending == 0 && b.bytes == 0) ++b.phase, b.pending = b.count;
}
inline Barrier& barrier(Block& where, unsigned address) {
    auto found = where.mbarriers.find(address & 0xFFFFFF);
    if (found == where.mbarriers.end()) stop("an mbarrier that was not initialised");
    return found->second;
}
inline void arrive(Block& where, unsigned address) {
    Barrier& b = barrier(where, address);
    if (--b.pending < 0) stop("more arrivals at an mbarrier than it expects");
    settle(b);
}

inline unsigned swizzled(unsigned offset, int bytes) {
    return bytes == 128 ? offset ^ (offset >> 7 & 7) << 4 : bytes == 64 ? offset ^ (offset >> 7 & 3) << 4 : bytes == 32 ? offset ^ (offset >> 7 & 1) << 4 : offset;
}
inline float from_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float v = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
    return (bits & 127) == 127 ? NAN : bits >> 7 ? -v : v;
}
// One element of a wgmma operand: `along` counts rows of a (columns of b), `deep` the inner dimension; `transposed`: along is contiguous.
inline float from_half(uint16_t bits, bool bfloat) {
    const uint32_t wide = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &wide, 4);
    __half h;
    memcpy(&h, &bits, 2);
    return bfloat ? v : (float)h;
}
inline float element(Block& where, uint64_t descriptor, int along, int deep, bool transposed, int item, bool bfloat, bool integers) {
    const unsigned start = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
    const int mode = descriptor >> 62, bytes = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0;
    unsigned offset = start;
    if (descriptor >> 49 & 7) stop("a base offset in a descriptor");
    if (!bytes && !transposed && item == 2) offset += along / 8 * stride + deep / 8 * leading + along % 8 * 16 + deep % 8 * 2;
    else if (!bytes || (transposed && item != 2)) stop("a layout of an operand that is not emulated");
    else if (!transposed) offset += along / 8 * stride + along % 8 * bytes + deep * item;   // the atom holds the whole inner dimension
    else offset += along / (bytes / 2) * leading + deep / 8 * stride + deep % 8 * bytes + along % (bytes / 2) * 2;
    const char* place = at(where, swizzled(offset, bytes));
    if (item == 1) return integers ? *(const int8_t*)place : from_e4m3(*(const uint8_t*)place);
    uint16_t bits;
    memcpy(&bits, place, 2);
    return from_half(bits, bfloat);
}
// An element of a where each thread holds rows lane / 4 and + 8 of its warp's 16: pairs along the depth, then those 8 deeper.
inline float element_of_rows(const Product& p, int row, int deep) {
    const int thread = row / 16 * 32 + row % 8 * 4 + deep % 8 / 2;
    return from_half(p.rows[thread][row / 8 % 2 + deep / 8 * 2] >> deep % 2 * 16, p.bfloat);
}
inline void multiply(Block& where, Product& p) {
    const int depth = 32 / p.item;
    std::vector<float> a(64 * depth), b(p.columns * depth);
    for (int i = 0; i < 64; ++i) for (int k = 0; k < depth; ++k)
        a[i * depth + k] = p.from_registers ? element_of_rows(p, i, k) : element(where, p.a, i, k, p.transposed_a, p.item, p.bfloat, p.integers);
    for (int j = 0; j < p.columns; ++j) for (int k = 0; k < depth; ++k)
        b[j * depth + k] = element(where, p.b, j, k, p.transposed_b, p.item, p.bfloat, p.integers);
    for (int t = 0; t < 128; ++t)
        for (int r = 0; r < p.columns / 2; ++r) {
            const int i = t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8, j = r / 4 * 8 + t % 4 * 2 + r % 2;
            if (p.integers) {
                int& total = *(int*)p.sums[t][r];
                total = p.accumulate ? total : 0;
                for (int k = 0; k < depth; ++k) total += (int)(a[i * depth + k] * b[j * depth + k]);
                continue;
            }
            float sum = p.accumulate ? *p.sums[t][r] : 0;
            for (int k = 0; k < depth; ++k) sum += a[i * depth + k] * b[j * depth + k];
            *p.sums[t][r] = sum;
        }
    p.done = true;
}
inline void multiply_up_to(Block& where, Warpgroup& group, size_t end) {
    for (size_t i = 0; i < end; ++i) if (!group.products[i]->done) multiply(where, *group.products[i]);
}

// A box of a tensor map to or from shared memory; what lies outside of the matrix is zero, or not written.
inline void copy_box(const CUtensorMap& map, Block& where, unsigned offset, int row, int column, bool store) {
    const int line = map.box_columns * map.item;
    if (map.swizzle && (line > map.swizzle || offset % (8 * map.swizzle))) stop("a swizzled box that is too wide or not aligned");
    for (int r = 0; r < map.box_rows; ++r) for (int c = 0; c < map.box_columns; ++c) {
        char* here = at(where, swizzled(offset + r * line + c * map.item, map.swizzle));
        const bool inside = row + r < map.rows && column + c < map.columns;
        char* there = map.base + ((long)(row + r) * map.columns + column + c) * map.item;
        if (store && inside) memcpy(there, here, map.item);
        if (!store && inside) memcpy(here, there, map.item);
        if (!store && !inside) memset(here, 0, map.item);
    }
}
inline void load_box(const CUtensorMap& map, unsigned to, int column, int row, unsigned barrier_at, unsigned blocks) {
    Cluster* cluster = block().cluster;
    for (auto& one : cluster->blocks) {
        if (!(blocks >> one->rank & 1)) continue;
        Block* where = one.get();
        auto act = [=] {
            copy_box(map, *where, to, row, column, false);
            Barrier& b = barrier(*where, barrier_at);
            b.bytes -= map.box_rows * map.box_columns * map.item;
            settle(b);
        };
        if (late) cluster->in_flight.push_back(act);
        else act();
    }
}

// Bytes that lie one after the other.
inline void load_run(unsigned to, const char* from, unsigned bytes, unsigned barrier_at) {
    Block* where = &block();
    if (to % 16 || (uint64_t)from % 16 || bytes % 16) stop("a copy that is not aligned");
    auto act = [=] {
        memcpy(at(*where, to), from, bytes);
        Barrier& b = barrier(*where, barrier_at);
        b.bytes -= bytes;
        settle(b);
    };
    if (late) where->cluster->in_flight.push_back(act);
    else act();
}

// One operand of an asm statement.
struct Operand { void* out; int size; uint64_t in; bool is_float; };
// Two numbers for a block of the cluster, counted by a barrier there.
inline void store_pair_later(const std::vector<Operand>& o) {
    const unsigned to = o[0].in, counter = o[3].in;
    const uint64_t pair = (uint32_t)o[1].in | o[2].in << 32;
    Block* where = &block_of(to);
    auto act = [=] {
        memcpy(at(*where, to & 0xFFFFFF), &pair, 8);
        Barrier& b = barrier(*where, counter);
        b.bytes -= 8;
        settle(b);
    };
    if (late) block().cluster->in_flight.push_back(act);
    else act();
}
template <class T> Operand out(T& v) { return {&v, sizeof v, 0, std::is_floating_point_v<T>}; }
template <class T> Operand in(T v) {
    uint64_t bits = 0;
    if constexpr (std::is_pointer_v<T>) bits = (uint64_t)v;
    else memcpy(&bits, &v, sizeof v);
    return {nullptr, (int)sizeof v, bits, false};
}
inline void give(const Operand& o, uint64_t value) { memcpy(o.out, &value, o.size); }
inline bool has(const char* text, const char* word) { return strstr(text, word) != nullptr; }

inline void issue_product(const char* text, const std::vector<Operand>& o) {
    const int columns = atoi(strstr(text, "m64n") + 4), count = columns / 2;
    const bool bfloat = has(text, "k16.f32.bf16.bf16"), from_registers = (int)o.size() == count + 6;
    const bool integers = has(text, "k32.s32.s8.s8");
    const int item = integers || has(text, "k32.f32.e4m3.e4m3") ? 1 : bfloat || has(text, "k16.f32.f16.f16") ? 2 : 0;
    const char* flags = strstr(text, integers ? "p;" : "p, 1, 1");
    if (!flags || !item || (from_registers ? item != 2 : (int)o.size() != count + 3)) stop("a wgmma that is not emulated");
    const int transposed_a = item == 2 && !from_registers && flags[9] == '1', transposed_b = item == 2 && flags[from_registers ? 9 : 12] == '1';
    const uint64_t a = from_registers ? 0 : o[count].in, b = o[count + (from_registers ? 4 : 1)].in;
    const int thread = current->thread.x % 128;
    Warpgroup& group = block().groups[current->thread.x / 128];
    const size_t index = current->products++;
    if (index == group.products.size())
        group.products.emplace_back(new Product{a, b, columns, item, transposed_a, transposed_b, (uint32_t)o.back().in != 0, bfloat, from_registers, integers});
    Product& p = *group.products[index];
    if (p.a != a || p.b != b || p.columns != columns) stop("a warpgroup whose threads differ in a wgmma");
    for (int r = 0; r < count; ++r) p.sums[thread][r] = (float*)o[r].out;
    for (int r = 0; r < 4 && from_registers; ++r) p.rows[thread][r] = o[count + r].in;
    if (++p.threads == 128 && !late) multiply_up_to(block(), group, index + 1);
}
inline void wait_for_products(int left) {
    if ((int)current->commits.size() <= left) return;
    const size_t end = current->commits[current->commits.size() - 1 - left];
    Warpgroup& group = block().groups[current->thread.x / 128];
    wait_until([&group, end] {
        for (size_t i = 0; i < end; ++i) if (group.products[i]->threads != 128) return false;
        return true;
    });
    multiply_up_to(block(), group, end);
}
inline void wait_for_stores(size_t left) {
    auto& groups = current->stores;
    while (groups.size() > left + 1) {
        for (auto& act : groups.front()) act();
        groups.pop_front();
    }
}
// Eight by eight halves, four times: lane i gives the address of row i % 8 of matrix i / 8, and holds two elements of row i / 4 of each.
inline void store_matrices(unsigned address, const std::vector<Operand>& o, bool transposed) {
    Warp& w = warp();
    uint64_t* mine = w.values[lane()];
    mine[0] = address;
    for (int m = 0; m < 4; ++m) mine[1 + m] = o[1 + m].in;
    meet(w.meeting, 32, [&] {
        for (int m = 0; m < 4; ++m) for (int t = 0; t < 32; ++t) for (int e = 0; e < 2; ++e) {
            const uint16_t value = w.values[t][1 + m] >> 16 * e;
            const int row = t / 4, column = t % 4 * 2 + e;
            const unsigned to = w.values[8 * m + (transposed ? column : row)][0] + (transposed ? row : column) * 2;
            memcpy(at(block(), to), &value, 2);
        }
    });
}

// The same the other way: eight by eight numbers of 16 bits, four times; lane i gives the address of row i % 8 of matrix i / 8.
inline void read_matrices(const std::vector<Operand>& o, bool transposed) {
    Warp& w = warp();
    w.values[lane()][0] = o[4].in;
    meet(w.meeting, 32);
    uint32_t found[4];
    for (int m = 0; m < 4; ++m) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
            const int row = lane() / 4, column = lane() % 4 * 2 + e;
            memcpy(&pair[e], at(block(), w.values[8 * m + (transposed ? column : row)][0] + (transposed ? row : column) * 2), 2);
        }
        found[m] = pair[0] | (uint32_t)pair[1] << 16;
    }
    meet(w.meeting, 32);
    for (int m = 0; m < 4; ++m) give(o[m], found[m]);
}
// Eight by eight numbers of 16 bits, a row in four lanes, become the columns.
inline uint32_t transposed_matrix(uint32_t mine) {
    Warp& w = warp();
    w.values[lane()][0] = mine;
    meet(w.meeting, 32);
    uint32_t found = 0;
    for (int e = 0; e < 2; ++e) {
        const int row = lane() % 4 * 2 + e, column = lane() / 4;
        found |= (uint32_t)(uint16_t)(w.values[row * 4 + column / 2][0] >> column % 2 * 16) << 16 * e;
    }
    meet(w.meeting, 32);
    return found;
}
// m16n8k16 of a warp in bfloat16: o holds the sums' four places, then a's four registers and b's two.
inline void multiply_in_warp(const std::vector<Operand>& o) {
    Warp& w = warp();
    for (int i = 0; i < 3; ++i) w.values[lane()][i] = o[4 + 2 * i].in << 32 | (uint32_t)o[5 + 2 * i].in;
    meet(w.meeting, 32);
    const auto part = [&](int thread, int i) { return (uint32_t)(w.values[thread][i / 2] >> (i % 2 ? 0 : 32)); };
    const auto number = [&](int thread, int i, int e) { return from_half(part(thread, i) >> 16 * e, true); };
    float sums[4];
    for (int i = 0; i < 4; ++i) {
        const int row = lane() / 4, column = lane() % 4 * 2 + i % 2;
        memcpy(&sums[i], o[i].out, 4);
        for (int k = 0; k < 16; ++k) sums[i] += number(row * 4 + k % 8 / 2, i / 2 + k / 8 * 2, k % 2) * number(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    }
    meet(w.meeting, 32);
    for (int i = 0; i < 4; ++i) memcpy(o[i].out, &sums[i], 4);
}

// Of 65536, as many as a block of its size may be launched with are the block's.
inline void take_registers(int wanted) {
    Block* where = &block();
    const int more = wanted - current->registers;
    wait_until([where, more] { return where->registers >= more; });
    where->registers -= more, current->registers = wanted;
}
inline void ptx(const char* text, const std::vector<Operand>& o) {
    const auto u = [&](int i) { return (uint32_t)o[i].in; };
    if (!*text || has(text, "prefetch.tensormap") || has(text, "wgmma.fence")) return;
    if (has(text, "setmaxnreg")) return take_registers(o.empty() ? atoi(strrchr(text, ' ')) : (int)u(0));
    if (has(text, "wgmma.mma_async")) return issue_product(text, o);
    if (has(text, "wgmma.commit_group")) return (void)current->commits.push_back(current->products);
    if (has(text, "wgmma.wait_group")) return wait_for_products(o.empty() ? 0 : u(0));
    if (has(text, "mbarrier.init")) {
        block().mbarriers[u(0)] = {(int)u(1), (int)u(1)};
        return;
    }
    if (has(text, "mbarrier.arrive.expect_tx")) {
        barrier(block(), u(0)).bytes += u(1);
        return arrive(block(), u(0));
    }
    if (has(text, "mbarrier.arrive.shared::cta.b64 _, [%0];")) return arrive(block(), u(0));
    if (has(text, "mapa.") && has(text, "mbarrier.arrive")) return arrive(*block().cluster->blocks[u(1)], u(0));
    if (has(text, "mbarrier.try_wait.parity")) {
        Barrier* b = &barrier(block(), u(1));
        const unsigned parity = u(2);
        wait_until([b, parity] { return (b->phase & 1) != parity; });
        return give(o[0], 1);
    }
    if (has(text, "fence.") || has(text, "cp.async.bulk.prefetch") || has(text, "prefetch.global")) return;
    if (has(text, "cp.async.bulk.shared::cluster.global.mbarrier")) return load_run(u(0), (const char*)o[1].in, u(2), u(3));
    if (has(text, "st.relaxed.gpu.global.u64 [%0], %1;")) return (void)(*(uint64_t*)o[0].in = o[1].in);
    if (has(text, "st.relaxed.gpu.global.")) {                  // one to four words
        for (size_t i = 1; i < o.size(); ++i) memcpy((char*)o[0].in + 4 * (i - 1), &o[i].in, 4);
        return;
    }
    if (has(text, "red.release.gpu.global.add.u32 [%0], %1;")) return (void)(*(uint32_t*)o[0].in += u(1));
    if (has(text, "ld.acquire.gpu.global.u32 %0, [%1];")) {
        poll();
        return give(o[0], *(const uint32_t*)o[1].in);
    }
    if (has(text, "ld.relaxed.gpu.global.u64 %0, [%1];")) {
        poll();
        return give(o[0], *(const uint64_t*)o[1].in);
    }
    if (has(text, "ld.relaxed.gpu.global.")) {
        poll();
        for (size_t i = 0; i + 1 < o.size(); ++i) memcpy(o[i].out, (const char*)o.back().in + 4 * i, 4);
        return;
    }
    if (has(text, "ld.global.nc.f32 %0, [%1];")) return (void)memcpy(o[0].out, (const void*)o[1].in, 4);
    if (has(text, "ex2.approx")) {
        float v;
        memcpy(&v, &o[1].in, 4);
        return (void)(*(float*)o[0].out = exp2f(v));
    }
    if (has(text, "mapa.shared::cluster.u32 %0, %1, %2;")) return give(o[0], u(1) + ((uint64_t)u(2) + 1 << 24));
    if (has(text, "st.shared::cluster.v2.f32 [%0], {%1, %2};")) {
        const uint32_t pair[2] = {u(1), u(2)};
        return (void)memcpy(at(block_of(u(0)), u(0) & 0xFFFFFF), pair, 8);
    }
    if (has(text, "%nctaid.x")) return give(o[0], grid_dim.x);
    if (has(text, "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32")) return store_pair_later(o);
    if (has(text, "ld.global") && (has(text, "v4.f32 {%0, %1, %2, %3}, [%4]") || has(text, "v4.u32 {%0, %1, %2, %3}, [%4]"))) {
        for (int i = 0; i < 4; ++i) memcpy(o[i].out, (const char*)o[4].in + 4 * i, 4);
        return;
    }
    if (has(text, "ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];")) {
        for (int i = 0; i < 4; ++i) memcpy(o[i].out, at(block(), u(4) + 4 * i), 4);
        return;
    }
    if (has(text, "createpolicy")) return give(o[0], 0);
    if (has(text, "%cluster_ctarank")) return give(o[0], block().rank);
    if (has(text, "barrier.cluster.arrive")) {
        Cluster& c = *block().cluster;
        current->cluster_round = c.meeting.round;
        if (++c.meeting.arrived == (int)c.blocks.size() * block().threads) c.meeting.arrived = 0, ++c.meeting.round;
        if (!has(text, "barrier.cluster.wait")) return;
    }
    if (has(text, "barrier.cluster.wait")) {
        Cluster* c = block().cluster;
        const unsigned round = current->cluster_round;
        return wait_until([c, round] { return c->meeting.round != round; });
    }
    if (has(text, "bar.sync %0, 128")) return meet(block().barriers[u(0)], 128);
    if (has(text, "bar.sync 1, 256")) return meet(block().barriers[1], 256);
    if (has(text, "bar.arrive 1, 256")) {
        Meeting& m = block().barriers[1];
        if (++m.arrived == 256) m.arrived = 0, ++m.round;
        return;
    }
    if (has(text, "cp.async.bulk.tensor.2d.shared::cluster.global")) {
        const unsigned blocks = has(text, "multicast::cluster") ? u(5) : 1u << block().rank;
        return load_box(*(const CUtensorMap*)o[1].in, u(0), (int)u(2), (int)u(3), u(4), blocks);
    }
    if (has(text, "cp.async.bulk.tensor.2d.global.shared")) {
        if (current->stores.empty()) current->stores.emplace_back();
        const CUtensorMap map = *(const CUtensorMap*)o[0].in;
        Block* where = &block();
        const int column = (int)u(1), row = (int)u(2);
        const unsigned from = u(3);
        auto act = [=] { copy_box(map, *where, from, row, column, true); };
        if (late) current->stores.back().push_back(act);
        else act();
        if (has(text, "commit_group")) current->stores.emplace_back();
        return;
    }
    if (has(text, "cp.async.bulk.global.shared::cta.bulk_group")) {
        if (current->stores.empty()) current->stores.emplace_back();
        char* to = (char*)o[0].in;
        Block* where = &block();
        const unsigned from = u(1), bytes = u(2);
        auto act = [=] { memcpy(to, at(*where, from), bytes); };
        if (late) current->stores.back().push_back(act);
        else act();
        return;
    }
    if (has(text, "cp.async.bulk.commit_group")) {
        if (current->stores.empty()) current->stores.emplace_back();
        return (void)current->stores.emplace_back();
    }
    if (has(text, "cp.async.bulk.wait_group")) return wait_for_stores(o.empty() ? 0 : u(0));
    if (has(text, "cp.async.cg.shared.global [%0], [%1], 16;") || has(text, "cp.async.ca.shared.global [%0], [%1], 8;")) {
        char* to = at(block(), u(0));
        const void* from = (const void*)o[1].in;
        const size_t bytes = has(text, ", 16;") ? 16 : 8;
        if (late) current->copies.push_back([=] { memcpy(to, from, bytes); });
        else memcpy(to, from, bytes);
        return;
    }
    if (has(text, "cp.async.wait_all")) {
        for (auto& act : current->copies) act();
        return current->copies.clear();
    }
    if (has(text, "ldmatrix.sync.aligned.m8n8.x4")) return read_matrices(o, has(text, ".trans"));
    if (has(text, "movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;")) return give(o[0], transposed_matrix(*(uint32_t*)o[0].out));
    if (has(text, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")) return multiply_in_warp(o);
    if (has(text, "stmatrix.sync.aligned.m8n8.x4")) return store_matrices(u(0), o, has(text, ".trans"));
    fprintf(stderr, "%s\n", text);
    stop("an instruction that is not emulated");
}

template <class T> T shuffled(T value, int from) {
    Warp& w = warp();
    memcpy(&w.values[lane()][0], &value, sizeof value);
    meet(w.meeting, 32);
    T found;
    memcpy(&found, &w.values[from][0], sizeof found);
    meet(w.meeting, 32);
    return found;
}

inline std::function<void()> body;
inline void run_fiber() {
    body();
    if (current->stores.size() > 1) stop("a thread ends while its stores still read shared memory");
    current->ended = true;
    swapcontext(&current->context, &scheduler);
}
inline void run_cluster(Cluster& cluster, std::vector<Fiber>& fibers) {
    size_t running = fibers.size();
    while (running) {
        bool moved = false;
        for (const bool last : {false, true}) {
            for (Fiber& one : fibers) {
                if (one.ended || last != ((int)one.thread.x / 128 == slow) || (one.wait && !one.wait())) continue;
                one.wait = nullptr, moved = true;
                current = &one;
                swapcontext(&scheduler, &one.context);
                running -= one.ended;
            }
            if (moved) break;
        }
        if (moved) continue;
        if (!deliver(cluster)) stop("all threads wait for each other");
    }
    if (!cluster.in_flight.empty()) stop("a kernel ends while copies to its shared memory are in flight");
}

// Runs a kernel on a grid of `blocks` in clusters of `cluster`, all in one dimension.
inline void launch(int blocks, int threads, int cluster_blocks, std::function<void()> kernel) {
    body = std::move(kernel);
    grid_dim = {(unsigned)blocks, 1, 1}, block_dim = {(unsigned)threads, 1, 1};
    char* stacks = (char*)mmap(nullptr, (size_t)STACK * threads * cluster_blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char* windows = (char*)aligned_alloc(WINDOW, (size_t)WINDOW * cluster_blocks);
    for (int first = 0; first < blocks; first += cluster_blocks) {
        Cluster cluster;
        memset(windows, 0xFF, (size_t)WINDOW * cluster_blocks);
        std::vector<Fiber> fibers(threads * cluster_blocks);
        for (int b = 0; b < cluster_blocks; ++b) {
            cluster.blocks.emplace_back(new Block);
            Block& made = *cluster.blocks.back();
            made.shared = windows + (size_t)WINDOW * b, made.index = {(unsigned)(first + b), 0, 0};
            made.rank = b, made.threads = threads, made.cluster = &cluster;
            made.warps.resize((threads + 31) / 32), made.groups.resize((threads + 127) / 128);
            for (int t = 0; t < threads; ++t) {
                Fiber& one = fibers[b * threads + t];
                one.registers = 65536 / threads / 8 * 8;
                one.block = &made, one.thread = {(unsigned)t, 0, 0}, one.stack = stacks + (size_t)STACK * (b * threads + t);
                getcontext(&one.context);
                one.context.uc_stack.ss_sp = one.stack, one.context.uc_stack.ss_size = STACK, one.context.uc_link = nullptr;
                makecontext(&one.context, run_fiber, 0);
            }
        }
        run_cluster(cluster, fibers);
    }
    munmap(stacks, (size_t)STACK * threads * cluster_blocks);
    free(windows);
}

// An operand's memory: the content of a file or, without one, NaN.
inline std::vector<char> memory(const char* file, size_t bytes) {
    std::vector<char> found(bytes, (char)0xFF);
    if (FILE* source = fopen(file, "rb")) {
        if (fread(found.data(), 1, bytes, source) != bytes) stop("an operand's file is too short");
        fclose(source);
    }
    return found;
}
inline void keep(const char* file, const std::vector<char>& bytes) {
    FILE* target = fopen(file, "wb");
    if (fwrite(bytes.data(), 1, bytes.size(), target) != bytes.size() || fclose(target)) stop("an output cannot be written");
}

// An argument of a kernel, whatever its type.
struct Argument {
    void* value;
    template <class T> operator T*() const { return (T*)value; }
    operator CUtensorMap() const { return *(const CUtensorMap*)value; }
};

}  // namespace emu

#define threadIdx (emu::current->thread)
#define blockIdx (emu::block().index)
#define blockDim (emu::block_dim)
#define gridDim (emu::grid_dim)
inline void __syncthreads() { emu::meet(emu::block().barriers[0], emu::block().threads); }
inline void __threadfence() {}
inline unsigned atomicMax(unsigned* at, unsigned value) {
    const unsigned old = *at;
    *at = std::max(old, value);
    return old;
}
inline void __syncwarp() { emu::meet(emu::warp().meeting, 32); }
inline size_t __cvta_generic_to_shared(const void* p) { return emu::shared_offset(p); }
inline bool __all_sync(unsigned, bool mine) {
    bool all = true;
    for (int i = 0; i < 32; ++i) all = emu::shuffled((int)mine, i) && all;
    return all;
}
inline bool __any_sync(unsigned, bool mine) { return !__all_sync(~0u, !mine); }
inline float rsqrtf(float v) { return 1 / sqrtf(v); }
namespace cooperative_groups {
struct grid_group {
    void sync() const {
        emu::Cluster& all = *emu::block().cluster;              // a cooperative grid is one cluster here
        emu::meet(all.grid, all.blocks.size() * emu::block().threads);
    }
};
inline grid_group this_grid() { return {}; }
}  // namespace cooperative_groups
template <class T> T __shfl_sync(unsigned, T v, int from) { return emu::shuffled(v, from % 32); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) { return emu::shuffled(v, emu::lane() ^ mask); }
template <class T> T __shfl_up_sync(unsigned, T v, int by) { return emu::shuffled(v, (int)emu::lane() < by ? emu::lane() : emu::lane() - by); }
template <class T> T __shfl_down_sync(unsigned, T v, int by) { return emu::shuffled(v, (int)emu::lane() + by > 31 ? emu::lane() : emu::lane() + by); }
