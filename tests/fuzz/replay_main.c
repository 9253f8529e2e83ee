/* Runs a fuzz target over given files, or over the files of given folders, once each. Linked in
   place of libFuzzer, so that every build with any compiler replays the collected inputs. Prints TAP;
   an input that breaks the target aborts the program after its name was printed. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shm/base.h"

enum { PATH_BYTES = 4096, INPUT_BYTES_MAX = 1 << 26 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Files replayed so far; a run that found none has tested nothing and fails. */
static unsigned replayed;

static void
stop(const char *path, const char *why)
{
    printf("Bail out! %s: %s\n", path, why);
    exit(1);
}

static void
replay_file(const char *path, size_t len)
{
    if (len > INPUT_BYTES_MAX) {
        stop(path, "larger than 64 MiB, no fuzz input is");
    }
    uint8_t *bytes = malloc(len == 0 ? 1 : len); /* exact, so that a sanitizer sees one byte more */
    FILE *file = fopen(path, "rb");
    if (bytes == NULL || file == NULL || fread(bytes, 1, len, file) != len) {
        stop(path, strerror(errno));
    }
    fclose(file);
    replayed++;
    printf("# %s\n", path);
    fflush(stdout);
    (void)LLVMFuzzerTestOneInput(bytes, len);
    printf("ok %u\n", replayed);
    free(bytes);
}

static void
replay_folder(const char *folder)
{
    struct dirent **entries;
    int cnt = scandir(folder, &entries, NULL, alphasort);
    if (cnt < 0) {
        stop(folder, strerror(errno));
    }
    for (int i = 0; i < cnt; i++) {
        char path[PATH_BYTES];
        struct stat found;
        int used = snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        if (used < PATH_BYTES && stat(path, &found) == 0 && S_ISREG(found.st_mode)) {
            replay_file(path, (size_t)found.st_size);
        }
        free(entries[i]);
    }
    free(entries);
}

int
main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat found;
        if (stat(argv[i], &found) != 0) {
            stop(argv[i], strerror(errno));
        }
        if (S_ISDIR(found.st_mode)) {
            replay_folder(argv[i]);
        } else {
            replay_file(argv[i], (size_t)found.st_size);
        }
    }
    if (replayed == 0) {
        printf("Bail out! no input: name files or folders of fuzz inputs\n");
        return 1;
    }
    printf("1..%u\n", replayed);
    return 0;
}
