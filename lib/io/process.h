/* process.h - child processes with pipes, the guardian that ends them with their parent, and the words of their command
 * lines. */
#ifndef VFM_IO_PROCESS_H
#define VFM_IO_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

/* A process that outlives its parent briefly.  When the parent ends, even by SIGKILL, the guardian kills the registered
 * children with their process groups, and removes the folder `dir` (NULL: none).  vfm_guardian_start forks: call it
 * early, while the process has few threads. */
enum { VFM_GUARDIAN_GROUPS = 512 }; /* registered at a time */
struct vfm_guardian {
	pid_t pid;
	int fd; /* < 0: none */
};

int vfm_guardian_start(struct vfm_guardian *g, const char *dir, struct vfm_err *err);
void vfm_guardian_add(const struct vfm_guardian *g, pid_t group);
void vfm_guardian_remove(const struct vfm_guardian *g, pid_t group);
void vfm_guardian_end(struct vfm_guardian *g); /* kills the registered groups, and waits; no-op if not started */

/* A child that leads a process group.  All descriptors are closed on exec; the pipes are non-blocking. */
struct vfm_process {
	pid_t pid;           /* 0: none */
	int in, out, err_fd; /* its stdin, to write; its stdout and stderr, to read; -1: closed */
	int pidfd;           /* readable (poll) once the child has ended; -1: the system has no pidfd */
};
#define VFM_PROCESS_NONE ((struct vfm_process){.in = -1, .out = -1, .err_fd = -1, .pidfd = -1})

/* argv and env end in NULL.  VFM_EUSAGE: there is no such program; VFM_EENV: no process or descriptor. */
int vfm_process_start(struct vfm_process *p, char *const *argv, char *const *env, struct vfm_err *err);
/* As vfm_process_start, with the caller's descriptors as stdin, stdout and stderr instead of pipes. */
int vfm_process_start_on(
	struct vfm_process *p, char *const *argv, char *const *env, const int fds[3], struct vfm_err *err);
/* Returns whether the child has ended, and its wait status.  The child stays a zombie, so that no other process can
 * reuse the number of its group. */
bool vfm_process_has_ended(const struct vfm_process *p, int *wait_status);
/* Kills the child and its group, reaps the child and closes the descriptors.  Returns the wait status. */
int vfm_process_kill(struct vfm_process *p);

/* Writes "SIGKILL", "signal 40" or "status 3" for the status of waitpid(2). */
void vfm_wait_status_text(int wait_status, char *text, size_t size);
/* "exited with status 1", "was killed by SIGSEGV" */
void vfm_process_describe(int wait_status, char *text, size_t size);

/* Splits a command line at blanks like a shell: '…' and "…" quote, and a backslash escapes the next character (within
 * "…" only " and \).  Expands nothing.  Returns a list that ends in NULL; free it with vfm_exec_words_free.  Returns
 * NULL with VFM_EUSAGE if there is no word, or a quote is open. */
char **vfm_exec_words(const char *text, struct vfm_err *err);
void vfm_exec_words_free(char **words); /* accepts NULL */
/* Returns a short name of a command, within argv: "env A=b python3 /opt/vae.py --x" -> "vae.py".  It is the last
 * component of the first word that names a program, or the script of an interpreter.  Without one: the first word. */
const char *vfm_exec_name(char *const *argv);

#endif
