/* The base of everything: status codes, checks of three strengths, and the few macros that need
   GNU extensions. Includes only libc; every other file of the project may include it. */
#ifndef BH_SHM_BASE_H
#define BH_SHM_BASE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Status of every fallible call. Zero is success, positive means "not now, try later", negative
   means "refused": the caller's argument, the peer's bytes or the system is wrong. */
enum bh_status {
    BH_OK = 0,
    BH_EMPTY = 1,     /* nothing to take */
    BH_FULL = 2,      /* no room */
    BH_AGAIN = 3,     /* not finished; call again */
    BH_EINVAL = -1,   /* an argument is outside its documented range */
    BH_ECORRUPT = -2, /* bytes that somebody else wrote break their format */
    BH_ELIMIT = -3,   /* well formed, but above a stated limit */
    BH_ESYS = -4,     /* the system refused; errno says why */
    BH_ESTALE = -5,   /* the handle names a life that is over */
};

#define BH_MUST_USE                      __attribute__((warn_unused_result))
#define BH_PRINTF(format_arg, first_arg) __attribute__((format(printf, format_arg, first_arg)))
#define BH_LIKELY(condition)             __builtin_expect(!!(condition), 1)
#define BH_UNLIKELY(condition)           __builtin_expect(!!(condition), 0)
#define BH_COUNT(array)                  (sizeof(array) / sizeof((array)[0]))
#if defined(__x86_64__)
#define BH_PAUSE() __builtin_ia32_pause() /* in a loop that waits for another core */
#else
#define BH_PAUSE() ((void)0)
#endif
#define BH_CACHE_LINE 64u

/* bh_die - print "file:line: message" to stderr and abort. Async-signal-safe except for the
   formatting of `message`, which is a literal. Never returns. */
_Noreturn void bh_die(const char *file, int line, const char *message);

/* BH_CHECK - proven true; if not, this process has a bug and must not go on. Always compiled in. */
#define BH_CHECK(condition)                                                                        \
    do {                                                                                           \
        if (BH_UNLIKELY(!(condition))) {                                                           \
            bh_die(__FILE__, __LINE__, "check failed: " #condition);                               \
        }                                                                                          \
    } while (0)

/* BH_DCHECK - like BH_CHECK but too costly for the hot path: on in builds with BH_HOOKS only. */
#ifdef BH_HOOKS
#define BH_DCHECK(condition) BH_CHECK(condition)
#else
#define BH_DCHECK(condition) ((void)sizeof(condition))
#endif

static inline uint64_t
bh_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
bh_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* bh_round_up - the smallest multiple of `unit` (a power of two) that is not below `value`. */
static inline uint64_t
bh_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

#endif
