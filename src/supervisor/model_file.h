/* The model file: opened read-only, mapped, indexed, its shape read. */
#ifndef BH_SUPERVISOR_MODEL_FILE_H
#define BH_SUPERVISOR_MODEL_FILE_H

#include "src/model/gguf.h"
#include "src/model/model.h"

#define BH_MODEL_FILE_ERROR_MAX 512

struct bh_model_file {
    uint8_t *bytes; /* mapped read-only; NULL when closed */
    size_t len;
    struct bh_gguf *gguf;
    struct bh_model_dims dims;
    uint64_t params;     /* number of weights */
    size_t packed_bytes; /* footprint of the packed weights */
};

/* bh_model_file_open - BH_OK, or `error` names the file, the field and what is wrong with it:
   BH_ESYS      it cannot be opened or mapped
   BH_ECORRUPT, BH_ELIMIT  it is no GGUF file, or no model that this engine computes */
BH_MUST_USE enum bh_status bh_model_file_open(const char *path,
                                              char error[BH_MODEL_FILE_ERROR_MAX],
                                              struct bh_model_file *out);
void bh_model_file_close(struct bh_model_file *file);

/* bh_model_file_name - the id that clients use: the last part of the path without ".gguf"; bytes that
   are not printable ASCII, quotes and backslashes become '_'. */
void bh_model_file_name(const char *path, char *name, size_t name_bytes);

#endif
