/* wait_status.h - the end of a child process as text. */
#ifndef VFM_BASE_WAIT_STATUS_H
#define VFM_BASE_WAIT_STATUS_H

#include <stddef.h>

/* Writes "SIGKILL", "signal 40" or "status 3" for the status of waitpid(2). */
void vfm_wait_status_text(int wait_status, char *text, size_t size);

#endif
