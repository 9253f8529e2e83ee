/* io_uring behind a small door. See uring.h. */
#include "src/core/uring.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* liburing 2.3 declares these two and does not export them. */
static int
register_restrictions(struct io_uring *ring, struct io_uring_restriction *list, uint32_t cnt)
{
    return (int)syscall(
        SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_RESTRICTIONS, list, cnt);
}

static int
enable_ring(struct io_uring *ring)
{
    return (int)syscall(
        SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
}

enum bh_status
bh_uring_new(struct bh_uring *uring, uint32_t entries, const uint8_t *ops, uint32_t op_cnt)
{
    struct io_uring_restriction list[16] = {0};
    BH_CHECK(op_cnt <= BH_COUNT(list));
    int error = io_uring_queue_init(entries, &uring->ring, IORING_SETUP_R_DISABLED);
    if (error < 0) {
        errno = -error;
        return BH_ESYS;
    }
    for (uint32_t i = 0; i < op_cnt; i++) {
        list[i].opcode = IORING_RESTRICTION_SQE_OP;
        list[i].sqe_op = ops[i];
    }
    if (register_restrictions(&uring->ring, list, op_cnt) < 0 || enable_ring(&uring->ring) < 0) {
        int saved = errno;
        io_uring_queue_exit(&uring->ring);
        errno = saved;
        return BH_ESYS;
    }
    return BH_OK;
}

struct io_uring_sqe *
bh_uring_sqe(struct bh_uring *uring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    if (sqe == NULL) {
        bh_uring_submit(uring);
        sqe = io_uring_get_sqe(&uring->ring);
        BH_CHECK(sqe != NULL);
    }
    return sqe;
}

void
bh_uring_submit(struct bh_uring *uring)
{
    /* EBUSY and EAGAIN leave the entries queued for the next call. */
    (void)io_uring_submit(&uring->ring);
}

void
bh_uring_wait(struct bh_uring *uring, uint64_t timeout_ns)
{
    struct __kernel_timespec limit = {.tv_sec = (int64_t)(timeout_ns / 1000000000u),
                                      .tv_nsec = (int64_t)(timeout_ns % 1000000000u)};
    struct io_uring_cqe *cqe;
    (void)io_uring_submit_and_wait_timeout(&uring->ring, &cqe, 1, &limit, NULL);
}

bool
bh_uring_next(struct bh_uring *uring, uint64_t *user_data, int32_t *result, bool *more)
{
    struct io_uring_cqe *cqe;
    if (io_uring_peek_cqe(&uring->ring, &cqe) != 0) {
        return false;
    }
    *user_data = cqe->user_data;
    *result = cqe->res;
    *more = (cqe->flags & IORING_CQE_F_MORE) != 0;
    io_uring_cqe_seen(&uring->ring, cqe);
    return true;
}
