/* The supervisor: creates all memory, starts every role, watches them, and is the fence between the
   life of a dead role and whatever may be done with what it held. README.md has the rules. */
#ifndef BH_SUPERVISOR_SUPERVISOR_H
#define BH_SUPERVISOR_SUPERVISOR_H

/* bh_serve_main - `bulkhead serve`: run a whole engine until it is told to stop. argv[0] is skipped,
   flags follow (src/core/config.def). Returns the exit status of the process:
   0  stopped because it was asked to, every role reaped
   1  the system refused something, or a role kept dying; the log says which and what to do
   2  nothing was started: a flag, the model file or the memory plan is not acceptable */
int bh_serve_main(int argc, char **argv);

#endif
