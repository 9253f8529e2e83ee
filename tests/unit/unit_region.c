/* Regions: rights of descriptors and maps as the kernel enforces them. */
#include "shm/region.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/atomic.h"

#define REGION_BYTES 16384u

static int
create(void)
{
    int fd = -1;
    cr_assert_eq(bh_region_create("unit", REGION_BYTES, &fd), BH_OK);
    cr_assert_geq(fd, 0);
    return fd;
}

Test(region, is_zeroed_private_and_of_fixed_size)
{
    int fd = create();
    struct stat info;
    cr_assert_eq(fstat(fd, &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0600);
    cr_assert_neq(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    size_t bytes = 0;
    cr_assert_eq(bh_region_bytes(fd, &bytes), BH_OK);
    cr_assert_eq(bytes, REGION_BYTES);
    cr_assert_eq(ftruncate(fd, REGION_BYTES * 2), -1);
    cr_assert_eq(ftruncate(fd, 0), -1);
    void *base = NULL;
    cr_assert_eq(bh_region_map(fd, REGION_BYTES, true, &base), BH_OK);
    for (size_t i = 0; i < REGION_BYTES; i++) {
        cr_assert_eq(((uint8_t *)base)[i], 0);
    }
    bh_region_unmap(base, REGION_BYTES);
}

Test(region, two_maps_show_one_memory)
{
    int fd = create();
    int readonly_fd = -1;
    cr_assert_eq(bh_region_readonly(fd, &readonly_fd), BH_OK);
    void *writable = NULL;
    void *readable = NULL;
    cr_assert_eq(bh_region_map(fd, REGION_BYTES, true, &writable), BH_OK);
    cr_assert_eq(bh_region_map(readonly_fd, REGION_BYTES, false, &readable), BH_OK);
    cr_assert_neq(writable, readable);
    memcpy((uint8_t *)writable + 5000, "bulk", 4);
    cr_assert_eq(memcmp((uint8_t *)readable + 5000, "bulk", 4), 0);
}

Test(region, a_readonly_descriptor_cannot_be_mapped_writable)
{
    int fd = create();
    int readonly_fd = -1;
    cr_assert_eq(bh_region_readonly(fd, &readonly_fd), BH_OK);
    void *base = NULL;
    cr_assert_eq(bh_region_map(readonly_fd, REGION_BYTES, true, &base), BH_ESYS);
    cr_assert_eq(errno, EACCES);
    cr_assert_null(base, "untouched unless BH_OK");
    cr_assert_eq(bh_region_map(readonly_fd, REGION_BYTES, false, &base), BH_OK);
    cr_assert_eq(mprotect(base, REGION_BYTES, PROT_READ | PROT_WRITE), -1);
    cr_assert_eq(errno, EACCES);
}

Test(region, another_user_cannot_reopen_it_writable)
{
    if (geteuid() != 0) {
        cr_skip_test("needs root to become another user");
    }
    int fd = create();
    int readonly_fd = -1;
    cr_assert_eq(bh_region_readonly(fd, &readonly_fd), BH_OK);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", readonly_fd);
        close(fd);
        bool dropped = setgid(65534) == 0 && setuid(65534) == 0;
        _exit(dropped && open(path, O_RDWR) < 0 && errno == EACCES ? 0 : 1);
    }
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

Test(region, a_stray_store_into_a_readonly_map_is_fatal)
{
    int fd = create();
    void *base = NULL;
    cr_assert_eq(bh_region_map(fd, REGION_BYTES, false, &base), BH_OK);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        bh_word_store(base, 1);
        _exit(0);
    }
    /* Killed by SIGSEGV, or ended by a sanitizer that caught it; never past the store. */
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_not(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(*(uint8_t *)base, 0);
}

Test(region, seal_waits_for_the_last_writable_map)
{
    int fd = create();
    void *base = NULL;
    cr_assert_eq(bh_region_map(fd, REGION_BYTES, true, &base), BH_OK);
    cr_assert_eq(bh_region_seal(fd), BH_ESYS);
    cr_assert_eq(errno, EBUSY);
    *(uint8_t *)base = 7;
    bh_region_unmap(base, REGION_BYTES);
    cr_assert_eq(bh_region_seal(fd), BH_OK);
    cr_assert_eq(bh_region_map(fd, REGION_BYTES, true, &base), BH_ESYS);
    cr_assert_eq(errno, EPERM);
    cr_assert_eq(write(fd, "x", 1), -1);
    cr_assert_eq(bh_region_map(fd, REGION_BYTES, false, &base), BH_OK);
    cr_assert_eq(*(uint8_t *)base, 7);
}

Test(region, wrong_arguments)
{
    int fd = create();
    int untouched = -7;
    void *base = NULL;
    size_t bytes = 1;
    cr_assert_eq(bh_region_create("unit", 0, &untouched), BH_EINVAL);
    cr_assert_eq(bh_region_create(NULL, 1, &untouched), BH_EINVAL);
    cr_assert_eq(bh_region_readonly(-1, &untouched), BH_ESYS);
    cr_assert_eq(untouched, -7);
    cr_assert_eq(bh_region_bytes(-1, &bytes), BH_ESYS);
    cr_assert_eq(bh_region_map(-1, REGION_BYTES, false, &base), BH_ESYS);
    cr_assert_eq(bh_region_map(fd, REGION_BYTES - 1, false, &base), BH_EINVAL);
    cr_assert_eq(bh_region_map(fd, REGION_BYTES + 4096, false, &base), BH_EINVAL);
    cr_assert_eq(bh_region_map(fd, 0, false, &base), BH_EINVAL);
    cr_assert_null(base);
    bh_region_unmap(NULL, REGION_BYTES);
}

/* Blocks of 512 bytes that the file really has. */
static long
blocks_of(int fd)
{
    struct stat info;
    cr_assert_eq(fstat(fd, &info), 0);
    return (long)info.st_blocks;
}

Test(region, discard_gives_back_whole_pages_only)
{
    int fd = create();
    void *base = NULL;
    cr_assert_eq(bh_region_map(fd, REGION_BYTES, true, &base), BH_OK);
    uint8_t *bytes = base;
    memset(bytes, 0x77, REGION_BYTES);
    long before = blocks_of(fd);
    bh_region_discard(bytes + 100, 4096);
    cr_assert_eq(bytes[4096], 0x77, "no whole page inside");
    bh_region_discard(bytes + 4000, 8288);
    /* Before anything reads the pages, which would make the kernel provide them again. */
    cr_assert_eq(before - blocks_of(fd), 16, "two pages went back");
    for (size_t i = 0; i < REGION_BYTES; i++) {
        cr_assert_eq(bytes[i], i >= 4096 && i < 12288 ? 0 : 0x77, "byte %zu", i);
    }
}

Test(region, discard_zeroes_private_memory_too)
{
    uint8_t *bytes = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)bytes, MAP_FAILED);
    memset(bytes, 0x77, 8192);
    bh_region_discard(bytes, 4096);
    cr_assert_eq(bytes[0], 0);
    cr_assert_eq(bytes[4095], 0);
    cr_assert_eq(bytes[4096], 0x77);
}
