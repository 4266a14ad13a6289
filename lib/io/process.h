/* process.h - child processes with pipes, the guardian that ends them with their parent, and the words of their command
 * lines. */
#ifndef VFM_IO_PROCESS_H
#define VFM_IO_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

/* A process of its own that outlives its parent by an instant.  When its parent ends, also by SIGKILL, it kills the
 * children that it knows with their process groups, and removes the folder.  vfm_guardian_start forks: call it early,
 * with few threads. */
enum { VFM_GUARDIAN_GROUPS = 512 }; /* that it can know at a time */
struct vfm_guardian {
	pid_t pid;
	int fd; /* < 0: none */
};

int vfm_guardian_start(struct vfm_guardian *g, const char *dir, struct vfm_err *err);
void vfm_guardian_add(const struct vfm_guardian *g, pid_t group);
void vfm_guardian_remove(const struct vfm_guardian *g, pid_t group);
void vfm_guardian_end(struct vfm_guardian *g); /* kills what it knows, and waits; no-op if none was started */

/* A child that leads a process group.  All descriptors are closed on exec; the pipes are non-blocking. */
struct vfm_process {
	pid_t pid;           /* 0: none */
	int in, out, err_fd; /* its stdin, to write; its stdout and stderr, to read; -1: closed */
	int pidfd;           /* readable (poll) once the child has ended; -1: the system has none */
};
#define VFM_PROCESS_NONE ((struct vfm_process){.in = -1, .out = -1, .err_fd = -1, .pidfd = -1})

/* argv and env end in NULL.  VFM_EUSAGE: there is no such program; VFM_EENV: no process or descriptor. */
int vfm_process_start(struct vfm_process *p, char *const *argv, char *const *env, struct vfm_err *err);
/* Returns whether the child has ended; sets its wait status.  It stays a zombie, so that its group's number cannot be
 * taken by another. */
bool vfm_process_has_ended(const struct vfm_process *p, int *wait_status);
/* Kills the child and its group, reaps the child and closes the descriptors.  Returns the wait status. */
int vfm_process_kill(struct vfm_process *p);

/* Writes "SIGKILL", "signal 40" or "status 3" for the status of waitpid(2). */
void vfm_wait_status_text(int wait_status, char *text, size_t size);
/* "exited with status 1", "was killed by SIGSEGV" */
void vfm_process_describe(int wait_status, char *text, size_t size);

/* Divides text at blanks, as a shell does: '…' and "…" quote, a backslash takes the next character as it is (within "…"
 * only before " and \).  Nothing is expanded.  Returns a list that ends in NULL, freed with vfm_exec_words_free, or
 * NULL with VFM_EUSAGE: no word, or an open quote. */
char **vfm_exec_words(const char *text, struct vfm_err *err);
void vfm_exec_words_free(char **words); /* accepts NULL */

#endif
