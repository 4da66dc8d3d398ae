#include "../tw_sim/hip.h"
