package org.quailspark;

import org.apache.spark.sql.catalyst.expressions.Cast$;
import org.apache.spark.sql.catalyst.expressions.CreateArray;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType$;
import scala.collection.immutable.Seq;
import scala.collection.mutable.ArrayBuffer;
import scala.runtime.AbstractFunction1;

/**
 * The SQL function prompt(template, argument…): an expression, not a UDF. It builds
 * named_struct('template', template, 'args', array(CAST(argument AS STRING), …)).
 */
public class PromptBuilder extends AbstractFunction1 {
  public Object apply(Object children) {
    Seq given = (Seq) children;
    if (given.isEmpty()) {
      throw new IllegalArgumentException("prompt() needs a template; accepted: prompt('… {0} …', column, …)");
    }
    ArrayBuffer arguments = new ArrayBuffer();
    for (int i = 1; i < given.size(); i++) {
      arguments.append(asString((Expression) given.apply(i)));
    }
    ArrayBuffer fields = new ArrayBuffer();
    fields.append(name("template"));
    fields.append(asString((Expression) given.apply(0)));
    fields.append(name("args"));
    fields.append(new CreateArray(arguments.toSeq(), true)); // true: of strings also when empty
    return new CreateNamedStruct(fields.toSeq());
  }

  private static Object name(String text) {
    return Literal$.MODULE$.apply(text);
  }

  private static Object asString(Expression value) {
    return Cast$.MODULE$.apply(value, (DataType) StringType$.MODULE$, SQLConf$.MODULE$.get().ansiEnabled());
  }
}
