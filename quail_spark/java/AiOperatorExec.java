package org.quailspark;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/**
 * A MapInArrow under the operator's own name, with the operator's metrics. It lives on the driver only: a task whose closure
 * holds the plan (that of an aggregate, say) gets a plain MapInArrow in its place, so executors need no class of ours.
 */
public class AiOperatorExec extends MapInArrowExec {
  private final String operator;
  private final MapInArrowExec plain; // made here, since a plan node needs the active session of the thread that plans

  /** The constructor must take what MapInArrowExec takes: Spark copies plan nodes by reflection. */
  public AiOperatorExec(Expression function, Seq output, SparkPlan child, boolean isBarrier, Option profile) {
    super(function, output, child, isBarrier, profile);
    this.operator = operatorOf(function);
    this.plain = new MapInArrowExec(function, output, child, isBarrier, profile);
  }

  /** The operator's name, such as ai_filter-1a2b3c4d, if this is the function of an AI operator, else null. */
  public static String operatorOf(Expression function) {
    if (!(function instanceof PythonUDF)) {
      return null;
    }
    String shown = ((PythonUDF) function).name();
    int end = shown.indexOf(": ");
    return end > 0 && (shown.startsWith("ai_filter-") || shown.startsWith("ai_join-")) ? shown.substring(0, end) : null;
  }

  public String nodeName() {
    return operator;
  }

  public Map metrics() {
    return OperatorMetrics.of(sparkContext(), operator).addedTo(super.metrics());
  }

  /** Java's serialization writes this instead. */
  protected Object writeReplace() {
    return plain;
  }

  public MapInArrowExec withNewChildInternal(SparkPlan child) {
    return new AiOperatorExec(func(), output(), child, isBarrier(), profile());
  }
}
