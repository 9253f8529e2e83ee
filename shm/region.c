/* Regions: memory files and their maps. See region.h for who gets which descriptor. */
#include "shm/region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DISCARD_UNIT 4096u

/* Close without losing the errno of what failed before. */
static void
close_quietly(int fd)
{
    int saved = errno;
    close(fd);
    errno = saved;
}

enum bh_status
bh_region_create(const char *name, size_t bytes, int *fd)
{
    if (name == NULL || bytes == 0 || bytes > INT64_MAX || fd == NULL) {
        errno = EINVAL;
        return BH_EINVAL;
    }
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0) {
        return BH_ESYS;
    }
    /* The mode matters: a role of another user that holds a read-only descriptor could otherwise
       reopen it writable through /proc. The size seals keep a truncation from turning every map
       into a SIGBUS; F_SEAL_SEAL stays off for bh_region_seal. */
    if (fchmod(made, 0600) != 0 || ftruncate(made, (off_t)bytes) != 0 ||
        fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        close_quietly(made);
        return BH_ESYS;
    }
    *fd = made;
    return BH_OK;
}

enum bh_status
bh_region_readonly(int fd, int *readonly_fd)
{
    char path[64];
    int printed = snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    BH_CHECK(printed > 0 && (size_t)printed < sizeof(path));
    int made = open(path, O_RDONLY | O_CLOEXEC);
    if (made < 0) {
        return BH_ESYS;
    }
    *readonly_fd = made;
    return BH_OK;
}

enum bh_status
bh_region_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) == 0 ? BH_OK : BH_ESYS;
}

enum bh_status
bh_region_bytes(int fd, size_t *bytes)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return BH_ESYS;
    }
    *bytes = (size_t)info.st_size;
    return BH_OK;
}

enum bh_status
bh_region_map(int fd, size_t bytes, bool writable, void **base)
{
    size_t file_bytes;
    enum bh_status status = bh_region_bytes(fd, &file_bytes);
    if (status != BH_OK) {
        return status;
    }
    /* A map beyond the end of the file is SIGBUS at some later moment; refuse it here. */
    if (bytes == 0 || bytes != file_bytes || base == NULL) {
        errno = EINVAL;
        return BH_EINVAL;
    }
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *mapped = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        return BH_ESYS;
    }
    *base = mapped;
    return BH_OK;
}

void
bh_region_unmap(void *base, size_t bytes)
{
    if (base != NULL) {
        BH_CHECK(munmap(base, bytes) == 0);
    }
}

void
bh_region_discard(void *from, size_t bytes)
{
    uintptr_t first = (uintptr_t)from;
    uintptr_t begin = (uintptr_t)bh_round_up(first, DISCARD_UNIT);
    uintptr_t end = (first + bytes) & ~(uintptr_t)(DISCARD_UNIT - 1);
    if (begin >= end) {
        return;
    }
    uint8_t *pages = (uint8_t *)from + (begin - first);
    /* Where the kernel cannot punch (private memory in tests) the promise is kept by hand: they
       read as zero. */
    if (madvise(pages, end - begin, MADV_REMOVE) != 0) {
        memset(pages, 0, end - begin);
    }
}
