/* Faults on demand, in test builds only (BH_HOOKS): the environment variable BH_INJECT says at which
   hook (shm/hook.h) this process is to fail, and how. It is what the kill tests drive.

       BH_INJECT="ITEM[,ITEM...]"      ITEM = PLACE[:NTH][@EPOCH][=ACTION]
       PLACE   name of a hook, for example pool.stamp:before_word
       NTH     only the NTH time this process comes by (from 1); without it every time
       EPOCH   only in that incarnation of the role; without it in every one
       ACTION  fault      BH_FAULT answers true (the default)
               kill       SIGKILL, between two stores
               stop       SIGSTOP: silent but not dead, until somebody continues or fences it
               exit       _exit(70)
               pause_MS   sleep MS milliseconds, then go on */
#ifndef BH_CORE_INJECT_H
#define BH_CORE_INJECT_H

#include "shm/base.h"

/* bh_inject_install - read BH_INJECT for incarnation `epoch` of this process and install the handler;
   without the variable nothing is installed. The text must stay where getenv found it.
   BH_EINVAL an item is malformed; BH_ELIMIT more than 16 items; *item points at it */
BH_MUST_USE enum bh_status bh_inject_install(uint32_t epoch, const char **item);

#endif
