/* comm/coll - communicators and their collectives, whatever carries them.
 *
 * The table of functions that a backend is, the backend of one rank, sums of the ranks' operands, sums between nodes.
 *
 * Used by: comm/device, comm/host, net, train, vfm-bench, vfm-sample
 * Calls: base, device/dev, device/ops, spec/model
 * Read first: comm.h, comm_nodes.h
 */
