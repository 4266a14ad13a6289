/* vbench.h - videos and their prompts in the layout that VBench reads (Huang et al., "VBench: Comprehensive Benchmark
 * Suite for Video Generative Models", arXiv 2311.17982; https://github.com/Vchitect/VBench, version 0.1.5, commit
 * 45e79ec1: vbench/__init__.py, build_full_info_json).
 *
 *	DIR/videos/PROMPT-INDEX.mp4   one folder of nothing but videos; INDEX counts the videos of a prompt from 0
 *	DIR/full_info.json            [{"prompt_en":…,"dimension":[…],"video_list":[…]}, …]; auxiliary_info as in
 *	                              the suite
 *	DIR/prompts.json              {"PROMPT-INDEX.mp4":PROMPT, …}
 *
 * Mode vbench_standard takes full_info.json as --full_json_dir and looks for the videos by their names; mode
 * custom_input takes prompts.json as --prompt_file, or else the prompt from the name.
 */
#ifndef VFM_DATA_EVAL_VBENCH_H
#define VFM_DATA_EVAL_VBENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { VFM_VBENCH_VIDEOS = 5 }; /* of a prompt, in mode vbench_standard */

struct vfm_vbench_opts {
	const char *dir;   /* is created; DIR/videos must not hold files */
	const char *suite; /* VBench_full_info.json; NULL: prompts of one's own */
	bool copy;         /* copies the videos; else makes symbolic links to their absolute paths */
};

struct vfm_vbench {
	int64_t videos, prompts; /* written; different prompts among them */
	int64_t fewest, most;    /* videos of a prompt */
	int64_t left_out;        /* records with "error" or "drop" */
	int64_t renamed;         /* videos whose prompt is no file name: only prompts.json has it */
	int64_t suite;           /* different prompts of the suite; 0: there is none */
	int64_t incomplete;      /* of these: with fewer than VFM_VBENCH_VIDEOS videos */
};

/* Lays out the videos `src` of the records of n files (JSON Lines; "-": stdin) by their prompts `caption`, in order.
 * VFM_EUSAGE: a record lacks one of them, has a video that VBench does not read, or a prompt that is not in the suite;
 * err names it.  With prompts of one's own, the dimensions are those that VBench documents for custom_input. */
int vfm_vbench_write(struct vfm_vbench *v, const struct vfm_vbench_opts *o, char **files, int n, struct vfm_err *err);

#endif
