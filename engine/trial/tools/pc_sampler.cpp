// Samples the program counter of the threads of this process. Loaded beside a kernel by sample_loop.py.

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <dirent.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

struct Sample {
    std::uintptr_t address;
    std::int64_t thread;
};

constexpr long CAPACITY = 1 << 18;
constexpr int MOST_THREADS = 1024;
Sample samples[CAPACITY];
std::atomic<long> taken{0};
std::atomic<bool> counting{false};
timer_t timers[MOST_THREADS];
int armed = 0;

std::uintptr_t program_counter(const void* context)
{
    const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return machine.pc;
#else
#error "no program counter is known for this processor"
#endif
}

void on_signal(int, siginfo_t*, void* context)
{
    if (!counting.load(std::memory_order_relaxed)) return;
    const long place = taken.fetch_add(1, std::memory_order_relaxed);
    if (place < CAPACITY) samples[place] = {program_counter(context), syscall(SYS_gettid)};
}

bool handled()
{
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    return sigaction(SIGPROF, &action, nullptr) == 0;
}

bool arm(long thread, long nanoseconds)
{
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event._sigev_un._tid = static_cast<pid_t>(thread);
    if (timer_create(CLOCK_MONOTONIC, &event, &timers[armed]) != 0) return false;
    const itimerspec every = {{0, nanoseconds}, {0, nanoseconds}};
    return timer_settime(timers[armed++], 0, &every, nullptr) == 0;
}

}  // namespace

// A timer for each thread that runs now. The number of threads, 0 if the system refuses.
extern "C" int sample_threads(long nanoseconds)
{
    DIR* folder = handled() ? opendir("/proc/self/task") : nullptr;
    if (folder == nullptr) return 0;
    while (const dirent* entry = readdir(folder)) {
        const long thread = std::atol(entry->d_name);
        if (thread > 0 && armed < MOST_THREADS) arm(thread, nanoseconds);
    }
    closedir(folder);
    return armed;
}

// One timer of the processor time of all threads, also those that start later. It fires at the system's tick at most.
extern "C" int sample_process(long nanoseconds)
{
    const itimerval every = {{0, nanoseconds / 1000}, {0, nanoseconds / 1000}};
    return handled() && setitimer(ITIMER_PROF, &every, nullptr) == 0 ? 1 : 0;
}

extern "C" void count_samples(int on)
{
    counting.store(on != 0, std::memory_order_relaxed);
}

extern "C" void stop_sampling()
{
    counting.store(false);
    for (int timer = 0; timer < armed; ++timer) timer_delete(timers[timer]);
    const itimerval never = {};
    setitimer(ITIMER_PROF, &never, nullptr);
}

extern "C" long samples_taken()
{
    const long all = taken.load();
    return all < CAPACITY ? all : CAPACITY;
}

extern "C" const Sample* first_sample()
{
    return samples;
}
