/* opt.h - command lines: one table of options drives the parser and the -h text.
 *
 * The parser adds -h/--help, -q/--quiet and -V/--version to every command; -h ends with the name of the manual page.
 * "--" ends the options; options and operands may be mixed.  "--x=1" and "--x 1" are equal, as are "-n4" and "-n 4".
 * VFM_EUSAGE: an option is unknown, takes the place of an argument, or its value is out of range or none of the names.
 * The message about an option that was renamed has its new name.  -o is a path and refuses the name of a format.
 *
 * A command with an example that is given nothing writes three lines to stderr: its summary, the example, and where to
 * read on.  It returns VFM_EUSAGE with an empty message.
 */
#ifndef VFM_IO_OPT_H
#define VFM_IO_OPT_H

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
	VFM_OPT_TEXT,  /* the same, of a text or path that records hold: UTF-8 */
	VFM_OPT_WORD,  /* const char **: one of the words in arg, "text|md|csv" */
	VFM_OPT_NAME,  /* int *, or an enum: the index of that word */
	VFM_OPT_LIST,  /* struct vfm_strlist *: may be repeated */
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
	double min, max; /* of a number; 0, 0: any */
	bool required;   /* a text: its dst is not NULL */
};
#define VFM_ABOVE_0 0x1p-1022     /* as min: 0 is out of range */
#define VFM_BELOW_1 (1 - 0x1p-53) /* as max: 1 is out of range */

struct vfm_stage_traits;

struct vfm_cmd {
	const char *name;     /* "vfm-pack" or "vfm-curate split" */
	const char *example;  /* a usual call, shown if the command is given nothing; NULL: it runs with nothing */
	const char *synopsis; /* one or more lines after "usage: ", without the name: "[-n N] DIR ..." */
	const char *summary;  /* one sentence: the .Nd of the manual page */
	const struct vfm_opt *opts;
	bool no_operands;
	const struct vfm_stage_traits *stage; /* NULL, or of a stage of records: data/record/stage.h */
};

enum { VFM_OPT_DONE = 1 }; /* -h or --version was printed to stdout: exit 0 */

/* Parses argv[1..] and moves the operands to argv[1..*n_operands] in their order.  Returns 0, VFM_OPT_DONE or
 * VFM_EUSAGE.
 */
int vfm_opt_parse(const struct vfm_cmd *cmd, int argc, char **argv, int *n_operands, struct vfm_err *err);
void vfm_opt_help(const struct vfm_cmd *cmd, FILE *out);

/* ---- commands with verbs: "vfm-curate split", "vfm-ckpt ls" ---- */
struct vfm_verb {
	const char *name;                                       /* "split" */
	const char *summary;                                    /* one short sentence for the list of verbs in -h */
	int (*run)(int argc, char **argv, struct vfm_err *err); /* argv[0] is the verb; it parses its options */
};

struct vfm_verbs {
	const char *name;            /* "vfm-curate" */
	const char *word;            /* the word for a verb of this command: "STAGE", "VERB" */
	const char *summary;         /* the .Nd of the manual page */
	const char *example;         /* a usual call, shown if no verb is given */
	const struct vfm_verb *list; /* the last entry has a NULL name */
	bool pages;                  /* each verb has a manual page, vfm-curate-split(1) */
};

/* Runs the verb that argv[1] names; its log lines begin with "vfm-curate split: ".  Handles -h, --version and unknown
 * verbs.  Returns the verb's result, VFM_OPT_DONE or VFM_EUSAGE. */
int vfm_verbs_run(const struct vfm_verbs *v, int argc, char **argv, struct vfm_err *err);

/* Calls see(cmd, ctx) with the description of a verb, as its -h prints it; the verb does nothing else.  `cmd` is valid
 * during the call.  Not thread-safe. */
void vfm_verb_describe(const struct vfm_verb *v, void (*see)(const struct vfm_cmd *cmd, void *ctx), void *ctx);

/* Ends a command: `return vfm_cmd_exit(rc, &err);` in main.  Prints the message of err, if any, when rc < 0.  Closes
 * stdout and reports an error of that, except for a broken pipe.  Returns the exit status: 0 for rc >= 0 and VFM_EPIPE,
 * else -rc. */
int vfm_cmd_exit(int rc, const struct vfm_err *err);

/* Call first in main.  Sets the name in messages.  A closed stdin, stdout or stderr becomes /dev/null, and its use
 * fails with EBADF.  SIGPIPE and SIGXFSZ are ignored, so that writes fail with EPIPE and EFBIG; SIGBUS in a mapped file
 * ends the process with a message (base/map.h).  The locale stays "C", since numbers are data. */
void vfm_cmd_init(const char *argv0);

#endif
