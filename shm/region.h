/* A region: one memory file. The supervisor makes them; roles get descriptors with the rights of the
   topology. The only file of shm/ that makes system calls. */
#ifndef BH_SHM_REGION_H
#define BH_SHM_REGION_H

#include "shm/base.h"

/* bh_region_create - a zeroed memory file of `bytes`, mode 0600, sealed against changing its size;
   *fd is close-on-exec and owned by the caller. BH_ESYS with errno. */
BH_MUST_USE enum bh_status bh_region_create(const char *name, size_t bytes, int *fd);

/* bh_region_readonly - a second, read-only descriptor of the same file. A process of another user
   that has only this one cannot map it writable, nor reopen it so: the kernel refuses. BH_ESYS. */
BH_MUST_USE enum bh_status bh_region_readonly(int fd, int *readonly_fd);

/* bh_region_seal - no store into the file any more, by anyone; no writable map may exist. BH_ESYS. */
BH_MUST_USE enum bh_status bh_region_seal(int fd);

/* bh_region_bytes - size of the file. BH_ESYS. */
BH_MUST_USE enum bh_status bh_region_bytes(int fd, size_t *bytes);

/* bh_region_map - map all of it, shared.
   BH_EINVAL  bytes is not the size of the file: a longer map would be SIGBUS later
   BH_ESYS    with errno (EACCES: the descriptor is read-only) */
BH_MUST_USE enum bh_status bh_region_map(int fd, size_t bytes, bool writable, void **base);
void bh_region_unmap(void *base, size_t bytes);

/* bh_region_discard - give the memory of whole 4 KiB pages inside [from, from + bytes) back to the
   system; they read as zero afterwards. For sparse logs; needs a writable map. */
void bh_region_discard(void *from, size_t bytes);

#endif
