/* opt.h - one table of options makes the parser, the -h text and is what the tests
 * compare with the manual page and the shell completion.
 *
 * Every command gets -h/--help, -q/--quiet and --version from the parser itself.
 * "--" ends the options; options and operands may be mixed; "--x=1" and "--x 1" are
 * the same; "-n4" and "-n 4" too; an unknown or doubtful option is VFM_EUSAGE.
 */
#ifndef VFM_BASE_OPT_H
#define VFM_BASE_OPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum vfm_opt_type {
	VFM_OPT_END = 0,
	VFM_OPT_FLAG,  /* bool *: set to true */
	VFM_OPT_INT,   /* int64_t *, strict */
	VFM_OPT_SIZE,  /* int64_t *, strict, with K M G */
	VFM_OPT_NUM,   /* double * */
	VFM_OPT_STR,   /* const char **: points into argv */
	VFM_OPT_LIST,  /* struct vfm_strlist *: may be given more than once */
	VFM_OPT_GROUP, /* a heading in the -h text: only .help is used */
};

struct vfm_strlist {
	const char **v;
	int n;
};
void vfm_strlist_add(struct vfm_strlist *l, const char *s);
void vfm_strlist_release(struct vfm_strlist *l);

struct vfm_opt {
	enum vfm_opt_type type;
	char letter;      /* 0: none */
	const char *name; /* long name without "--"; NULL: none */
	const char *arg;  /* "FILE", as printed; NULL for flags */
	const char *help; /* one line */
	void *dst;
};

struct vfm_cmd {
	const char *name;     /* "vfm-pack" or "vfm-curate split" */
	const char *synopsis; /* one or more lines after "usage: ", without the name: "[-c N] DIR ..." */
	const char *summary;  /* one sentence: the .Nd of the manual page */
	const struct vfm_opt *opts;
};

enum { VFM_OPT_DONE = 1 }; /* -h or --version was printed to stdout: exit 0 */

/* Parses argv[1..]; operands are moved to argv[1..*n_operands] in their order.
 * Returns 0, VFM_OPT_DONE, or VFM_EUSAGE. */
int vfm_opt_parse(const struct vfm_cmd *cmd, int argc, char **argv, int *n_operands, struct vfm_err *err);
void vfm_opt_help(const struct vfm_cmd *cmd, FILE *out);

/* ---- commands that are a family of verbs: "vfm-curate split", "vfm-ckpt ls" ---- */
struct vfm_verb {
	const char *name;                                       /* "split" */
	const char *summary;                                    /* one short sentence for the list in the family's -h */
	int (*run)(int argc, char **argv, struct vfm_err *err); /* argv[0] is the verb; parses its own options */
};

struct vfm_verbs {
	const char *name;            /* "vfm-curate" */
	const char *word;            /* what a verb is called here: "STAGE", "VERB" */
	const char *summary;         /* the .Nd of the manual page */
	const struct vfm_verb *list; /* ends with name NULL */
};

/* Runs the verb that argv[1] names; its log lines begin with "vfm-curate split: ".  Handles -h, --version and unknown
 * verbs.  Returns what the verb returns, VFM_OPT_DONE, or VFM_EUSAGE. */
int vfm_verbs_run(const struct vfm_verbs *v, int argc, char **argv, struct vfm_err *err);
void vfm_verbs_help(const struct vfm_verbs *v, FILE *out);

/* "0.1.0 (abc1234) cpu media …": what `--version` prints after the command's name. */
const char *vfm_version(void);
/* What a command knows of itself beyond that (NULL: nothing): more words behind those, "" or " cuda".  Set first in
 * main. */
extern const char *(*vfm_version_more)(void);
/* "abc1234": an array, so that its address is a constant. */
extern const char vfm_commit[];

/* The last thing a command does: if rc < 0 reports err (where it holds a message) on stderr,
 * checks that stdout closed well (a broken pipe is quiet), returns the exit status:
 * 0 for rc >= 0 and VFM_EPIPE, else -rc.  `return vfm_cmd_exit(rc, &err);` from main. */
int vfm_cmd_exit(int rc, const struct vfm_err *err);

/* To be called first in main: log name; SIGPIPE ignored, so that a write gives EPIPE (and
 * SIGXFSZ: EFBIG); the locale stays "C", because numbers are data. */
void vfm_cmd_init(const char *argv0);

#endif
