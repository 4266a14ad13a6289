/* exec_stage.h - stages whose work is done by child processes of one command: caption, score --exec, embed, split
 * --exec. */
#ifndef VFM_CURATE_EXEC_STAGE_H
#define VFM_CURATE_EXEC_STAGE_H

#include "data/record/stage.h"
#include "encoder/exec/exec.h"
#include "encoder/exec/outside.h"

struct exec_stage {
	const char *command; /* --exec */
	struct vfm_exec_opts opts;
	int64_t frames; /* --frames; 0: as the child requires */
	double fps;     /* --fps; 0: as the child requires */
	double timeout_s;
	unsigned more_ops;  /* further ops that the child must have */
	bool shows_nothing; /* requests have no frames and no path */
	bool shows_windows; /* requests have windows of frames, as hello.shots describes them */
	struct vfm_exec *exec;
	struct vfm_outside_view view; /* what each request shows */
};

/* Traits and options of these stages; `s` is a struct exec_stage *. */
extern const struct vfm_stage_traits exec_stage_traits;
#define EXEC_STAGE_OPTS(s)                                                                                             \
	{VFM_OPT_STR, 0, "exec", "CMD", "the model: -j N children that speak vfm-exec(7)", &(s)->command},             \
		{VFM_OPT_INT, 0, "frames", "N", "show N evenly spaced frames (default: as the child wants)",           \
			&(s)->frames},                                                                                 \
	{                                                                                                              \
		VFM_OPT_NUM, 0, "fps", "X", "show X frames a second (default: as the child wants)", &(s)->fps          \
	}
/* Requests the vector of the clip of a record from a child.  Sets *npy and *data: [dim], floating-point. */
int exec_stage_vector(const struct exec_stage *s, struct vfm_exec_slot *slot, const json_t *rec, struct vfm_npy *npy,
	const void **data, struct vfm_err *err);

/* Starts the children, prepares the stage for them, runs it and ends the children.  more: further options for the stage
 * fingerprint; NULL: none. */
int exec_stage_run(
	struct exec_stage *s, struct vfm_stage *stage, const char *capability, const char *more, struct vfm_err *err);

#endif
