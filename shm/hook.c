/* The handler that a test installs; only in libraries built with BH_HOOKS. */
#include "shm/hook.h"

bool (*bh_hook_handler)(const char *place) = NULL;
