/* Opening a model file that nobody vouches for. */
#include "src/supervisor/model_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_NONBLOCK so that a FIFO of that name is refused below instead of waited for. */
static enum bh_status
map_file(const char *path, char *error, struct bh_model_file *out)
{
    enum bh_status status = BH_ESYS;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        snprintf(error, BH_MODEL_FILE_ERROR_MAX, "model %s: %s", path, strerror(errno));
        return BH_ESYS;
    }
    struct stat info;
    if (fstat(fd, &info) != 0) {
        snprintf(error, BH_MODEL_FILE_ERROR_MAX, "model %s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode) || info.st_size == 0) {
        snprintf(error,
                 BH_MODEL_FILE_ERROR_MAX,
                 "model %s: %s, expected a GGUF file",
                 path,
                 S_ISREG(info.st_mode) ? "empty" : "not a regular file");
        status = BH_ECORRUPT;
        goto done;
    }
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        snprintf(error, BH_MODEL_FILE_ERROR_MAX, "model %s: mmap: %s", path, strerror(errno));
        goto done;
    }
    out->bytes = bytes;
    out->len = (size_t)info.st_size;
    status = BH_OK;
done:
    close(fd);
    return status;
}

static uint64_t
count_params(const struct bh_gguf *gguf)
{
    uint64_t params = 0;
    for (uint64_t i = 0; i < bh_gguf_tensor_cnt(gguf); i++) {
        const struct bh_gguf_tensor *tensor = bh_gguf_tensor_at(gguf, i);
        params += tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    }
    return params;
}

static enum bh_status
read_model(const char *path, char *error, struct bh_model_file *out)
{
    char why[BH_GGUF_ERROR_MAX] = "no memory";
    static_assert(BH_GGUF_ERROR_MAX == BH_MODEL_ERROR_MAX, "one buffer for both");
    enum bh_status status = bh_gguf_open(out->bytes, out->len, out->len, why, &out->gguf);
    if (status == BH_OK) {
        status = bh_model_dims_read(out->gguf, why, &out->dims);
    }
    if (status == BH_OK) {
        out->packed_bytes = bh_model_pack_footprint(out->gguf, why);
        status = out->packed_bytes != 0 ? BH_OK : BH_ELIMIT;
    }
    if (status != BH_OK) {
        snprintf(error, BH_MODEL_FILE_ERROR_MAX, "model %s: %s", path, why);
        return status;
    }
    out->params = count_params(out->gguf);
    return BH_OK;
}

enum bh_status
bh_model_file_open(const char *path, char error[BH_MODEL_FILE_ERROR_MAX], struct bh_model_file *out)
{
    struct bh_model_file file = {0};
    enum bh_status status = map_file(path, error, &file);
    if (status != BH_OK) {
        return status;
    }
    status = read_model(path, error, &file);
    if (status != BH_OK) {
        bh_model_file_close(&file);
        return status;
    }
    *out = file;
    return BH_OK;
}

void
bh_model_file_close(struct bh_model_file *file)
{
    if (file->gguf != NULL) {
        bh_gguf_close(file->gguf);
    }
    if (file->bytes != NULL) {
        munmap(file->bytes, file->len);
    }
    *file = (struct bh_model_file){0};
}

void
bh_model_file_name(const char *path, char *name, size_t name_bytes)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    size_t len = strlen(base);
    if (len > 5 && strcmp(base + len - 5, ".gguf") == 0) {
        len -= 5;
    }
    len = (size_t)bh_min_u64(len, name_bytes - 1);
    for (size_t i = 0; i < len; i++) {
        char c = base[i];
        name[i] = c > ' ' && c < 0x7f && c != '"' && c != '\\' ? c : '_';
    }
    name[len] = '\0';
}
